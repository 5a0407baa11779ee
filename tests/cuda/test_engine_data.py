"""The engine's data on a GPU: streamed, resident and CPU batches are equal, graphs can gather, and nothing waits."""

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from hotlap.engine.data import (
    Arrays,
    CarriedWindows,
    ConcatSource,
    DataUnreadable,
    Hdf5,
    NpyFolder,
    Stream,
    Tensors,
    Windows,
    ZipReader,
    mapped,
    resident,
    subset,
)  # fmt: skip
from hotlap.engine.data.batch_size import measure_batch_sizes
from hotlap.engine.data.memory import Room, measured
from hotlap.engine.recipe import Recipe
from hotlap.engine.recurrent import Recurrent, flatten, is_flat
from hotlap.engine.trainer import Trainer

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")
ROWS = 1003
TABLE = np.random.default_rng(0).standard_normal((ROWS, 24)).astype(np.float32)
LABELS = np.arange(ROWS, dtype=np.int64)


@pytest.fixture(autouse=True)
def syncs_as_usual():
    yield
    torch.cuda.set_sync_debug_mode("default")


def order(seed=0):
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))


def from_memory(folder):
    return Arrays(TABLE, LABELS)


def from_npy(folder):
    np.save(folder / "x.npy", TABLE)
    np.save(folder / "y.npy", LABELS)
    return Arrays(folder / "x.npy", folder / "y.npy")


def from_hdf5(folder):
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("x", data=TABLE, chunks=(64, 24), compression="gzip")
        file.create_dataset("y", data=LABELS)
    return Hdf5(folder / "data.h5", "x", "y")


def from_folder(folder):
    for row in range(ROWS):
        np.save(folder / f"{row:05d}.npy", TABLE[row])
    return ZipReader(NpyFolder(folder), Arrays(LABELS))


@pytest.mark.parametrize("make", [from_memory, from_npy, from_hdf5, from_folder])
@pytest.mark.parametrize(("threads", "ahead"), [(1, 2), (4, 6)])
def test_streamed_batches_equal_resident_batches(make, threads, ahead, tmp_path):
    reader = make(tmp_path)
    whole = resident(reader, device=GPU)
    assert isinstance(whole, Tensors)
    assert whole.device.type == "cuda"
    stream = Stream(reader, threads=threads, ahead=ahead)
    for number, (x, y) in enumerate(stream.batches(order(), 64, GPU)):
        index = order()[number * 64 : number * 64 + 64].cuda()
        expected = whole.gather(index)
        assert x.is_cuda
        assert torch.equal(x, expected[0])
        assert torch.equal(y, expected[1])
    assert number == ROWS // 64


def test_memory_of_a_batch_is_not_reused_while_the_training_reads_it():
    """Batches are released at once while slow kernels on the training's stream still have to read them."""
    stream = Stream(Arrays(TABLE, LABELS), threads=3, ahead=3)
    sums = []
    for epoch in range(3):
        for x, y in stream.batches(order(epoch), 32, GPU):
            torch.cuda._sleep(2_000_000)
            sums.append(torch.stack((x.double().sum(), y.double().sum())))
            del x, y
    expected = [
        [TABLE[rows].astype(np.float64).sum(), LABELS[rows].sum()]
        for epoch in range(3)
        for rows in np.split(order(epoch).numpy(), range(32, ROWS, 32))
    ]
    torch.testing.assert_close(torch.stack(sums).cpu(), torch.tensor(expected, dtype=torch.float64))


def test_batches_can_be_streamed_on_another_cuda_stream():
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        batches = [x.clone() for x, _ in Stream(Arrays(TABLE, LABELS)).batches(order(), 100, GPU)]
    own.synchronize()
    assert torch.equal(torch.cat(batches).cpu(), torch.from_numpy(TABLE)[order()])


def test_neither_a_gather_nor_a_streamed_batch_waits_for_the_device():
    source = mapped(subset(Tensors(TABLE, LABELS, device=GPU), torch.arange(0, ROWS, 2)), lambda x, y: (x * 2, y))
    index = torch.arange(32, device=GPU)
    source.gather(index)
    batches = Stream(Arrays(TABLE, LABELS)).batches(order(), 32, GPU)
    next(batches)
    torch.cuda.set_sync_debug_mode("error")
    source.gather(index)
    for x, y in batches:
        x.add(y[:, None])


@pytest.mark.parametrize("kind", ["tensors", "compact", "windows", "joined", "mapped"])
def test_a_captured_gather_follows_its_index(kind):
    tensors = Tensors(TABLE, LABELS, device=GPU)
    source = {
        "tensors": tensors,
        "compact": Tensors(TABLE > 0, device=GPU, dtypes=[torch.float32]),
        "windows": Windows([TABLE[:500], TABLE[500:]], 17, [LABELS[:500], LABELS[500:]], device=GPU),
        "joined": ConcatSource(tensors, tensors),
        "mapped": mapped(tensors, lambda x, y: (x.relu(), y + 1)),
    }[kind]
    index = torch.zeros(50, dtype=torch.int64, device=GPU)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        source.gather(index)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = source.gather(index)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        index.copy_(torch.randint(source.rows, (50,), generator=generator))
        graph.replay()
        for got, expected in zip(captured, source.gather(index), strict=True):
            assert torch.equal(got, expected)


def test_windows_on_the_gpu_equal_those_on_the_cpu_and_are_laid_out_by_step():
    here = Windows([TABLE[:500], TABLE[500:]], 17, [LABELS[:500], LABELS[500:]])
    there = Windows([TABLE[:500], TABLE[500:]], 17, [LABELS[:500], LABELS[500:]], device=GPU)
    index = torch.randint(here.rows, (64,))
    for on_cpu, on_gpu in zip(here.gather(index), there.gather(index.cuda()), strict=True):
        assert torch.equal(on_cpu, on_gpu.cpu())
    assert there.gather(index.cuda())[0].transpose(0, 1).is_contiguous()


def test_a_graph_can_be_captured_between_two_batches():
    batches = Stream(Arrays(TABLE, LABELS), threads=4, ahead=6).batches(order(), 32, GPU)
    static, _ = next(batches)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = static.sum()
    for x, _ in batches:
        if len(x) == len(static):
            static.copy_(x)
            graph.replay()
            torch.testing.assert_close(total, x.sum())


def test_an_error_in_a_thread_reaches_the_training_with_file_and_row(tmp_path):
    reader = from_folder(tmp_path)
    (tmp_path / "00070.npy").write_bytes(b"nothing")
    batches = Stream(reader).batches(torch.arange(ROWS), 32, GPU)
    assert len([next(batches) for _ in range(2)]) == 2
    with pytest.raises(DataUnreadable, match=r"00070\.npy, row 70"):
        next(batches)


def test_data_too_large_for_the_gpu_stays_on_the_host_and_trains_the_same():
    small = Room(device=1000, host=measured(GPU).host)
    stream = resident(TABLE, LABELS, device=GPU, room=small)
    assert isinstance(stream, Stream)
    assert "host memory" in stream.placed
    assert measured(GPU).device > 2**30

    def weights(source):
        torch.manual_seed(0)
        model = nn.Linear(24, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        recipe = Recipe(batch_size=64, shuffle=False, precision="fp32")
        loss = lambda outputs, labels: (outputs.squeeze(1) - labels / ROWS).square().mean()  # noqa: E731
        trainer = Trainer(model, loss, optimizer, recipe, device=GPU, say=lambda line: None)
        trainer.fit(source, epochs=2)
        return model.weight.detach().clone()

    torch.testing.assert_close(weights(stream), weights(resident(TABLE, LABELS, device=GPU)))


def test_recurrent_weights_are_flat_and_can_be_flattened_again():
    model = nn.Sequential(Recurrent("lstm", 3, 5, 2)).to(GPU)
    layer = model[0].layers
    assert is_flat(layer)
    assert flatten(model) == 0
    with torch.no_grad():
        for weight in layer.parameters():
            weight.data = weight.data.clone()
    assert not is_flat(layer)
    assert flatten(model) == 1
    assert is_flat(layer)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_carried_state_continues_inside_a_graph(cell):
    series = [torch.randn(64, 3), torch.randn(40, 3)]
    source = CarriedWindows(series, 8, [part[:, :1] for part in series], lanes=2, device=GPU)
    torch.manual_seed(0)
    layers = Recurrent(cell, 3, 5, state="carry", lanes=2).to(GPU).eval()
    index = torch.arange(2, device=GPU)

    def step():
        window, fresh, _ = source.gather(index)
        return layers(window, fresh)

    with torch.inference_mode():
        eager = []
        for start in range(0, source.rows, 2):
            index.copy_(torch.arange(start, start + 2))
            eager.append(step().clone())
        index.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        layers.reset()
        for number, start in enumerate(range(0, source.rows, 2)):
            index.copy_(torch.arange(start, start + 2))
            graph.replay()
            torch.testing.assert_close(out, eager[number])


def test_batch_sizes_are_measured_with_the_peak_of_a_whole_step():
    model = nn.Sequential(nn.Linear(24, 4096), nn.ReLU(), nn.Linear(4096, 1)).to(GPU)
    optimizer = torch.optim.Adam(model.parameters())
    source = Tensors(TABLE, LABELS.astype(np.float32), device=GPU)

    def step(model, batch):
        return (model(batch[0]).squeeze(1) - batch[1]).square().mean()

    before = torch.cuda.get_rng_state()
    sizes = measure_batch_sizes(model, optimizer, step, source, 64, [64, 512], seconds=0.02)
    small, large = sizes.measured
    assert large.memory - small.memory > 448 * 4096 * 4
    assert torch.equal(before, torch.cuda.get_rng_state())

    def greedy(model, batch):
        if len(batch[0]) > 64:
            torch.empty(2**46, dtype=torch.uint8, device=GPU)
        return step(model, batch)

    assert measure_batch_sizes(model, optimizer, greedy, source, 64, [64, 512], seconds=0.02).out_of_memory == (512,)
