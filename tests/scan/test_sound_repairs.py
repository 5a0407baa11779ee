"""No repair breaks a program, whatever stands around the place it repairs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from hotlap.analysis.edits.soundness import flaws
from hotlap.scanning import FindingFilter, repair_text
from tests.scan.command import scan

IMPORTS = """\
import time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""


def fixed(text: str, code: str, unsafe: bool = True) -> str:
    after = repair_text(text, FindingFilter(select=(code,)), unsafe)
    assert not flaws(text, after)
    return after


@pytest.mark.parametrize(
    ("before", "after", "flaw"),
    [
        ("x = 1\nprint(x)\n", "x = 1\nprint(y)\n", "y is not bound"),
        ("x = 1\nprint(x)\n", "print(x)\nx = 1\n", "x is read before it is set"),
        ("import gc\ngc.collect()\n", "import gc\n", "gc is left unused"),
        ("def f():\n    x = 1\n    return x\n", "def f():\n    x = 1\n    return 1\n", "x is set and never read"),
        ("if a:\n    f()\n", "if a:\n    pass\n", "a block is left empty"),
        ("f(a)\n", "f(a,, b)\n", "it is not valid Python"),
        (
            'from torch.cuda import amp\nSAMPLE = "an example"\namp.autocast()\n',
            'from torch.cuda import amp\nSAMPLE = "an example"\n',
            "amp is left unused",
        ),
    ],
)
def test_a_repair_that_breaks_the_file_is_recognised(before, after, flaw):
    assert flaw in flaws(before, after)[0]


def test_what_was_wrong_before_the_repair_does_not_prevent_it():
    before = "import os\nprint(missing, x)\nx = 1\n"
    assert flaws(before, before.replace("x = 1", "x = 2")) == []


MIXED = """
def main(model: nn.Module, loader: DataLoader, val_loader: DataLoader, optimizer):
    for epoch in range(3):
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        total = 0.0
        for x, y in val_loader:
            total += F.mse_loss(model(x), y).item()
        model.train()
        print(total)
"""


def test_inference_mode_wraps_the_evaluation_of_a_function_that_also_trains():
    after = fixed(IMPORTS + MIXED, "H206", unsafe=False)
    assert after == IMPORTS + MIXED.replace(
        "        for x, y in val_loader:\n            total += F.mse_loss(model(x), y).item()\n",
        "        with torch.inference_mode():\n            for x, y in val_loader:\n"
        "                total += F.mse_loss(model(x), y).item()\n",
    )


EVALUATION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mask = None

    def forward(self, x):
{forward}
        return self.layer(x)


def evaluate(model: Net, loader: DataLoader):
    model.eval()
    total = 0.0
{head}        for x, y in loader:
            total += F.mse_loss(model(x), y).item()
    return total


def main(model: Net, loader: DataLoader, optimizer):
    for epoch in range(3):
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        evaluate(model, loader)
"""
NO_GRAD = "    with torch.no_grad():\n"
KEEPING = {
    "in an attribute": "        self.mask = torch.ones_like(x)",
    "in a list of the model": "        self.outputs.append(x * 2)",
    "in a table of the file": "        MASKS[x.shape] = torch.ones_like(x)",
    "as a global": "        global last\n        last = x * 2",
    "as a buffer": '        self.register_buffer("mask", torch.ones(4))',
}


@pytest.mark.parametrize("forward", KEEPING.values(), ids=KEEPING)
@pytest.mark.parametrize(("head", "code"), [(NO_GRAD, "H207"), ("    if True:\n", "H206")])
def test_inference_mode_is_not_offered_where_the_model_keeps_a_tensor(forward, head, code):
    text = IMPORTS + "MASKS = {}\n" + EVALUATION.format(forward=forward, head=head)
    assert fixed(text, code) == text


@pytest.mark.parametrize(("head", "code"), [(NO_GRAD, "H207"), ("    if True:\n", "H206")])
def test_inference_mode_is_offered_where_the_model_keeps_only_numbers(head, code):
    text = IMPORTS + EVALUATION.format(forward="        self.length = x.size(0)", head=head)
    assert "inference_mode" in fixed(text, code, unsafe=False)


def test_inference_mode_of_a_model_from_an_unknown_library_is_unsafe():
    text = IMPORTS + "import unheard_of\n" + EVALUATION.format(forward="        x = x + 1", head=NO_GRAD)
    assert fixed(text, "H207", unsafe=False) == text
    assert "inference_mode" in fixed(text, "H207")


def test_inference_mode_is_not_offered_where_a_tensor_leaves_the_block():
    text = IMPORTS + EVALUATION.format(forward="        x = x + 1", head=NO_GRAD).replace(
        "total += ", "last = "
    ).replace("(model(x), y).item()", "(model(x), y)").replace("return total", "return last")
    assert fixed(text, "H207") == text


def test_inference_mode_is_not_offered_for_sharded_models():
    text = IMPORTS + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    text += EVALUATION.format(forward="        x = x + 1", head=NO_GRAD)
    assert fixed(text, "H207") == text


LOOP = """
def train(model: nn.Module, loader: DataLoader, optimizer, device):
    total = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total
"""


@pytest.mark.parametrize(
    "device",
    [
        'device = "mps" if torch.backends.mps.is_available() else "cuda"',
        "device = torch.accelerator.current_accelerator()",
        'device = parser.parse_args(["--device", "cuda"]).device',
    ],
)
def test_a_sum_in_double_precision_is_not_written_for_devices_that_may_lack_it(device):
    text = IMPORTS + device + "\n" + LOOP
    assert fixed(text, "H201", unsafe=False) == text
    assert ".double()" not in fixed(text, "H201")
    cuda = IMPORTS + 'device = torch.device("cuda")\n' + LOOP
    assert "loss.detach().double()" in fixed(cuda, "H201", unsafe=False)


SPREAD = """
kwargs = {{"num_workers": 1, "pin_memory": True}} if torch.cuda.is_available() else {{}}


def main(dataset, model, optimizer):
    loader = DataLoader(dataset, batch_size=8, {call})
    for epoch in range(3):
        for x in loader:
            model(x.cuda()).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main(dataset, model, optimizer)
"""


def test_nothing_is_added_to_a_loader_whose_mapping_may_lack_the_workers():
    for code in ("D101", "D102", "D103", "D104", "D121"):
        text = IMPORTS + SPREAD.format(call="**kwargs")
        assert "persistent_workers" not in fixed(text, code)
        assert "DataLoader(dataset, batch_size=8, **kwargs)" in fixed(text, code)
    written = IMPORTS + SPREAD.format(call="num_workers=2")
    assert "num_workers=2, persistent_workers=True)" in fixed(written, "D102")


FACTORY = """
def make(dataset, workers=2):
    return DataLoader(dataset, batch_size=8, num_workers=workers)


def main(dataset, model, optimizer):
    loader = make(dataset)
    for epoch in range(3):
        for x in loader:
            model(x.cuda()).sum().backward()
            optimizer.step()
"""


def test_the_number_of_workers_is_read_only_where_its_name_exists():
    after = fixed(IMPORTS + FACTORY, "D102")
    assert "make(dataset)\n" in after
    assert "num_workers=workers, persistent_workers=workers > 0)" in after


SCRIPT = """
import os


def main(model, optimizer, dataset):
    loader = DataLoader(dataset, batch_size=8)
    for epoch in range(3):
        for x in loader:
            model(x.cuda()).sum().backward()
            optimizer.step()


{start}
"""


def test_workers_are_not_started_by_a_script_that_trains_when_it_is_imported():
    text = IMPORTS + SCRIPT.format(start="main(model, optimizer, dataset)")
    assert fixed(text, "D101") == text
    both = IMPORTS + SCRIPT.format(start='main(model, optimizer, dataset)\nif __name__ == "__main__":\n    print(1)')
    assert fixed(both, "D101") == both
    guarded = IMPORTS + SCRIPT.format(start='if __name__ == "__main__":\n    main(model, optimizer, dataset)')
    assert "num_workers=" in fixed(guarded, "D101")
    top = IMPORTS + "loader = DataLoader(dataset)\nfor x in loader:\n    model(x.cuda()).sum().backward()\n"
    assert fixed(top, "D101") == top


def test_a_loader_of_which_one_batch_is_taken_gets_neither_workers_nor_pinned_memory():
    text = IMPORTS + (
        "\n\ndef main(dataset, model):\n    x = next(iter(DataLoader(dataset, batch_size=8)))\n"
        "    for step in range(100):\n        model(x.cuda()).sum().backward()\n"
    )
    assert fixed(text, "D101") == text
    assert fixed(text, "D104") == text


FALLBACK = """
def train(model, loader):
    try:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    except RuntimeError:
        optimizer = torch.optim.AdamW(model.parameters())
    for x in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
"""


def test_an_optimizer_that_a_program_falls_back_on_is_not_fused():
    assert fixed(IMPORTS + FALLBACK, "C106") == IMPORTS + FALLBACK


@pytest.mark.parametrize("made", ["nn.Embedding(9, 4, sparse=True)", "torch.zeros(4, dtype=torch.cfloat)"])
def test_an_optimizer_is_not_fused_where_parameters_may_be_sparse_or_complex(made):
    text = f"{IMPORTS}weights = {made}\n" + FALLBACK.replace(", fused=True", "")
    assert fixed(text, "C106") == text


TAIL = """
def train(model, loader, optimizer, epochs):
    done = 0
    for epoch in range(epochs):
        for {target} in {over}:
            (model(x.cuda()).sum() / 4).backward()
            if ({counter} + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            done += 1
"""


@pytest.mark.parametrize(
    ("target", "over", "counter", "repaired"),
    [
        ("i, x", "enumerate(loader)", "i", True),
        ("i, x", "enumerate(loader)", "done", False),
        ("i, x", "enumerate(loader, 1)", "i", False),
        ("x", "loader", "done", False),
    ],
)
def test_the_last_batch_is_told_only_by_the_counter_of_its_own_loop(target, over, counter, repaired):
    text = IMPORTS + TAIL.format(target=target, over=over, counter=counter)
    assert (fixed(text, "H208") != text) == repaired


TIMING = """
def time_sync():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.time()


def train(args, model, loader, optimizer):
    for x in loader:
        begin = time_sync()
        model(x.cuda()).sum().backward()
        optimizer.step()
        if args.synchronize_step:
            torch.cuda.synchronize()
        print(time_sync() - begin)
"""


def test_a_wait_around_a_clock_or_asked_for_by_an_option_stays():
    assert fixed(IMPORTS + TIMING, "H101") == IMPORTS + TIMING


SHORT = """
def train(args, model, loader, optimizer):
    for x in loader:
        for step in {over}:
            model(x.cuda()).sum().backward()
            optimizer.step()
            print("step", step)
"""


@pytest.mark.parametrize("over", ["range(15)", "range(STEPS)", "range(args.steps)", "range(0, 60, 2)"])
def test_a_loop_of_few_steps_still_writes_each(over):
    head = IMPORTS + 'STEPS = 15\nparser.add_argument("--steps", type=int, default=15, help="steps to train")\n'
    text = head + SHORT.format(over=over)
    assert fixed(text, "H205") == text
    long = head.replace("15", "5000") + SHORT.format(over=over.replace("15", "5000").replace("60, 2", "5000"))
    assert "if step % 100 == 0:" in fixed(long, "H205")


LIKE = """
def train(model, loader, optimizer):
    for x in loader:
        x = x.cuda()
        for w in model.parameters():
            noise = torch.zeros_like(w).to(w.device)
            w.data.add_(noise)
        model(x).sum().backward()
        optimizer.step()
"""


def test_a_tensor_like_another_is_already_where_that_one_is():
    assert fixed(IMPORTS + LIKE, "D202") == IMPORTS + LIKE


HOST = """
device = torch.device("cpu")


def train(model, dataset, optimizer):
    loader = DataLoader(dataset, batch_size=8)
    for epoch in range(3):
        for x in loader:
            model(x.to(device)).sum().backward()
            optimizer.step()
"""


def test_nothing_is_pinned_in_a_program_that_never_uses_a_gpu():
    for code in ("D104", "D121"):
        assert fixed(IMPORTS + HOST, code) == IMPORTS + HOST
    assert "pin_memory=torch.cuda.is_available()" in fixed(IMPORTS + HOST.replace("cpu", "cuda"), "D104")


def test_an_import_that_a_repair_leaves_without_use_is_removed_with_it():
    text = (
        "import gc\nimport torch\n\nfor x in loader:\n    model(x).sum().backward()\n    gc.collect()\nprint(torch)\n"
    )
    assert fixed(text, "H101", unsafe=False) == text.replace("import gc\n", "").replace("    gc.collect()\n", "")


MAYBE_SCALED = """
def train(model, loader, optimizer, scaler):
    for x in loader:
        loss = model(x.cuda()).sum()
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()
"""


def test_gradients_are_not_divided_where_there_may_be_no_scaler():
    assert fixed(IMPORTS + MAYBE_SCALED, "C202") == IMPORTS + MAYBE_SCALED


def test_a_line_that_would_be_longer_than_any_other_is_broken_in_front_of_the_new_argument():
    made = "    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, collate_fn=collate_samples)\n"
    text = f"{IMPORTS}\n\ndef main(args, dataset, model):\n{made}"
    text += "    for x in loader:\n        model(x.cuda()).sum().backward()\n"
    broken = made.replace("samples)\n", f"samples,\n{' ' * 24}pin_memory=torch.cuda.is_available())\n")
    assert fixed(text, "D104", unsafe=False) == text.replace(made, broken)
    wide = f"# {'-' * 150}\n{text}"
    assert made.replace(")\n", ", pin_memory=torch.cuda.is_available())\n") in fixed(wide, "D104", unsafe=False)


def test_batches_are_pinned_where_there_is_a_gpu_if_the_file_can_ask():
    given = """from torch.utils.data import DataLoader


def train(model, data):
    for x in DataLoader(data, 32, num_workers=2):
        model(x.cuda()).sum().backward()
"""
    assert "num_workers=2, pin_memory=torch.cuda.is_available())" in fixed(f"import torch\n{given}", "D104")
    assert "num_workers=2, pin_memory=True)" in fixed(given, "D104")


def test_new_texts_are_quoted_as_the_file_quotes():
    text = "import torch\nscaler = torch.cuda.amp.GradScaler(enabled=dtype == {0}float16{0})\n"
    for quote in ("'", '"'):
        assert f"torch.amp.GradScaler({quote}cuda{quote}, enabled" in fixed(text.format(quote), "C201", unsafe=False)


SUMS = """
model = nn.Linear(4, 3)
loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(0, 3, (20,))), batch_size=6)


def evaluate():
    model.eval()
    {name} = {start}
    with torch.no_grad():
        for x, y in loader:
            {name} += {value}
    return {name}


result = evaluate()
"""
HITS = "(model(x).argmax(1) == y).sum().item()"


@pytest.mark.parametrize("start", ["0", "0.0"])
@pytest.mark.parametrize(
    "value",
    [
        HITS,
        f"{HITS} / len(y)",
        f"float({HITS})",
        f"int({HITS})",
        f"int({HITS} / 2)",
        "int(F.mse_loss(model(x), model(x) + 0.9).item() * 3)",
        "int((F.cross_entropy(model(x), y) * 1.9).item())",
        "F.cross_entropy(model(x), y).item() * x.size(0)",
    ],
)
def test_a_sum_read_after_the_loop_has_the_same_value_and_type(start, value):
    text = IMPORTS + SUMS.format(name="total", start=start, value=value)
    results = []
    for program in (text, fixed(text, "H201", unsafe=False)):
        scope: dict[str, object] = {}
        torch.manual_seed(3)
        exec(program, scope)  # the program is ours
        results.append(scope["result"])
    assert results[0] == results[1]
    assert type(results[0]) is type(results[1])


LEAVING = """
def visit(model: nn.Module, loader: DataLoader, bank, teacher):
    kept = {{}}
    with torch.no_grad():
        for i, x in enumerate(loader):
            out = model(x.cuda())
            {statement}
    return {returned}


def main(model: nn.Module, loader: DataLoader, optimizer, bank, teacher):
    for epoch in range(3):
        labels = visit(model, loader, bank, teacher)
        for x in loader:
            model(x.cuda()).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("statement", "returned", "offered"),
    [
        ("kept[i] = out", "kept", False),
        ("bank.update(out)", "0", False),
        ("teacher.center = out.mean(0)", "0", False),
        ("teacher.center[0] = out.mean(0)", "0", False),
        ("print(out.mean().item())", "0", True),
        ("teacher.count = len(x)", "0", True),
    ],
)
def test_inference_mode_is_not_offered_where_an_object_from_outside_gets_a_tensor(statement, returned, offered):
    text = IMPORTS + LEAVING.format(statement=statement, returned=returned)
    assert (fixed(text, "H207") != text) == offered


CHECKED = """
def train(model: nn.Module, loader: DataLoader, optimizer, device):
    for step, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x.to(device)), y.to(device))
        CHECK
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("check", "after"),
    [
        ("assert torch.isfinite(loss)", "if step % 100 == 0:\n            assert torch.isfinite(loss)"),
        (
            "if torch.isnan(loss) or loss > 1e6:\n            print('large', step)",
            "if step % 100 == 0 and (torch.isnan(loss) or loss > 1e6):\n            print('large', step)",
        ),
    ],
)
def test_a_check_that_only_tells_is_made_every_hundredth_batch(check, after):
    assert fixed(IMPORTS + CHECKED.replace("CHECK", check), "H202") == IMPORTS + CHECKED.replace("CHECK", after)


@pytest.mark.parametrize(
    "check",
    [
        "if torch.isnan(loss):\n            continue",
        "if torch.isnan(loss):\n            loss = loss.detach() * 0",
        "if nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 100:\n            print('clipped')",
        "if loss > 3:\n            print('large')\n        else:\n            optimizer.zero_grad()",
        "if (large := loss > 3):\n            print('large')\n        print(large)",
    ],
)
def test_a_check_that_the_training_depends_on_stays(check):
    text = IMPORTS + CHECKED.replace("CHECK", check)
    assert fixed(text, "H202") == text


def test_a_script_without_a_gpu_pins_nothing_because_another_takes_its_model(tmp_path_factory):
    """Two examples that use a GPU import the digits of one that does not."""
    project = tmp_path_factory.mktemp("project")  # without the packages of this repository, which take long to read
    (project / "pyproject.toml").touch()
    examples = shutil.copytree(Path(__file__).parents[2] / "examples", project / "examples")
    found = scan(str(examples), "--select", "D104")[1]
    assert "engine_images.py" in found
    assert "examples/digits.py" not in found


ROWS = """

def train(model, x, optimizer):
    for epoch in range(3):
        for i in range(0, len(x), 8):
            loss = model(x[i : i + 8]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss)
"""


def test_every_hundredth_batch_is_not_every_hundredth_row():
    repaired = fixed(IMPORTS + ROWS, "H205")
    assert "i % 100" not in repaired
    assert "for step, i in enumerate(range(0, len(x), 8)):" in repaired
    assert "if step % 100 == 0:" in repaired


ACCUMULATED = """

def train(model, x, optimizer):
    for i in range(512):
        model(x[i]).sum().backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("turns", "is_lost"), [(512, False), (513, True)])
def test_no_batch_is_lost_where_their_number_divides(tmp_path, turns, is_lost):
    (tmp_path / "train.py").write_text(IMPORTS + ACCUMULATED.replace("512", str(turns)))
    assert ("H208" in scan(str(tmp_path), "--select", "H208")[1]) is is_lost


AGENT = """
class States:
    def __init__(self, rows):
        self.rows, self.number = rows, 0

    def __iter__(self):
        self.number = 0
        return self

    def __next__(self):
        if self.number == len(self.rows):
            raise StopIteration
        self.number += 1
        return torch.tensor(self.rows[self.number - 1], device="cuda")


class Agent:
    def __init__(self):
        self.net = nn.Linear(4, 2).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def eval(self):
        self.net.eval()

    def value(self, state):
        with torch.no_grad():
            return (self.net(state.unsqueeze(0)) * self.support).sum(1).max(0)[0]{read}

    def learn(self, states):
        self.net(states).mean().backward()
        self.optimizer.step()


def test(agent, states):
    values = []
    for state in states:
        values.append(agent.value(state))
    return sum(values) / len(values)


agent = Agent()
kept = States(rows)
for number in range(1000):
    agent.learn(batch.cuda())
    if number % 100 == 0:
        agent.eval()
        print(test(agent, kept))
"""


def test_a_number_that_a_method_of_an_agent_returns_is_not_detached():
    text = IMPORTS + AGENT.format(read=".item()")
    assert fixed(text, "H223") == text
