"""The same costly result computed again for every sample in every epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.names.modules import argument
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import dependents, dotted, is_for_test, is_kept, mentions, per_sample, set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.catalog.transform_per_sample import dataset_transforms
from hotlap.records.scan_finding import Confidence

WORDS = (
    "resampl", "resize", "librosa", "torchaudio", "scipy", "stft", "fft", "interpolate", "tokeniz", "encode", "Mol",
    "padding=", "spacy", "smiles", "literal_eval", "pywt", "pectrogram", "medfilt", "Resize",
)  # fmt: skip
SEVERITY = "high"
_COSTLY_PREFIXES = (
    "librosa.feature.", "librosa.effects.", "torchaudio.functional.", "torchaudio.compliance.", "numpy.fft.",
    "python_speech_features.", "scipy.fft.", "scipy.fftpack.", "pywt.", "rdkit.Chem.AllChem.", "nltk.tokenize.",
    "scipy.ndimage.", "julius.", "resampy.", "kaldi_native_fbank.", "skimage.feature.",
    "skimage.filters.", "skimage.morphology.",
)  # fmt: skip
_COSTLY = frozenset(
    "librosa.stft librosa.cqt librosa.resample librosa.power_to_db librosa.amplitude_to_db scipy.signal.spectrogram "
    "scipy.signal.stft scipy.signal.resample scipy.signal.resample_poly scipy.signal.filtfilt scipy.signal.sosfiltfilt "
    "scipy.signal.savgol_filter scipy.signal.medfilt scipy.signal.welch scipy.signal.cwt torch.stft torch.fft.fft "
    "torch.fft.rfft torch.fft.fft2 cv2.resize cv2.GaussianBlur cv2.Canny cv2.warpAffine cv2.remap cv2.undistort "
    "cv2.fastNlMeansDenoising skimage.transform.resize "
    "torch.nn.functional.interpolate torchvision.transforms.functional.resize rdkit.Chem.MolFromSmiles "
    "audresample.resample resampy.resample nltk.word_tokenize nltk.sent_tokenize ast.literal_eval jieba.cut jieba.lcut "
    "dgllife.utils.smiles_to_bigraph dgllife.utils.smiles_to_complete_graph dgllife.utils.mol_to_bigraph "
    "torchvision.transforms.functional.rotate dgl.from_networkx torch_geometric.utils.from_smiles".split()
)
_CHEAP = ("fftfreq", "rfftfreq", "fftshift", "ifftshift")
_TOKENIZING = frozenset("padding truncation return_tensors add_special_tokens return_attention_mask max_length".split())


def find(code: Code) -> Iterator[Found]:
    yield from dataset_transforms.to_datasets(code)
    if not code.hotness.is_hot(code.path):
        return
    yield from _in_steps(code)
    for call in code.all_calls():
        verb = _costly(code, call) if per_sample(code, call) else ""
        if not verb or _is_cached(code, call) or _inside_costly(code, call):
            continue
        function = code.function(call)
        if function is None or _is_random(code, call, function):
            continue
        yield Found(
            call,
            f"`{shown(call)}` {verb} every sample again in every epoch",
            "compute it once before training and keep the result in memory or on disk",
            confidence=Confidence.LOW if is_for_test(code, call) or _only_resizes(code, call) else Confidence.MEDIUM,
        )


def _is_cached(code: Code, call: ast.Call) -> bool:
    """Tell whether the result is cached; a table of modules caches modules, not their results."""
    return is_kept(code, call) and not _table_entries(code, call.func) and not _stores_modules(code, call)


def _stores_modules(code: Code, call: ast.Call) -> bool:
    """Tell whether the function stores only modules: `self.resamplers[rate] = Resample(rate)`."""
    stored = [
        node.value
        for node in walk(code.function(call) or call)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
        if dotted(node.targets[0].value).startswith("self.")
    ]
    return bool(stored) and all(dataset_transforms.repeated(code, value) is not None for value in stored)


def _in_steps(code: Code) -> Iterator[Found]:
    """Yield `tokenizer(texts, padding=True)` on the texts of a batch in a training step."""
    for call in code.all_calls():
        name = last_name(call.func).lower()
        named = name.endswith(("tokenizer", "tokenize")) or name in ("batch_encode_plus", "encode_plus")
        if not named or not code.hot(call) or per_sample(code, call) or not call.args:
            continue
        if (_tokenizes(code, call) or _is_tokenizer(code, call)) and _is_of_step(code, call):
            yield Found(
                call,
                f"`{shown(call)}` tokenizes the texts of every batch again in every epoch",
                "tokenize once before training, or in collate_fn, where workers do it while the device computes",
                confidence=Confidence.MEDIUM,
            )


def _is_tokenizer(code: Code, call: ast.Call) -> bool:
    """Recognise a tokenizer by its name, and by its result, which becomes a tensor or goes to the device."""
    if "tokenizer" not in last_name(call.func).lower() or not isinstance(call.args[0], ast.Name | ast.Subscript):
        return False
    statement = code.statement(call)
    names = {node.id for node in walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    function = code.function(call)
    return function is not None and any(
        isinstance(node, ast.Call) and mentions(node, names) and last_name(node.func) in ("tensor", "to", "cuda")
        for node in walk(function)
    )


def _is_of_step(code: Code, call: ast.Call) -> bool:
    """Tell whether a training step tokenizes the texts of its batch. A forward pass may as well be inference, and
    constants are tokenized once: neither counts."""
    function = code.function(call)
    steps = [step.text for step in code.heat(call).why]
    after = next((number for number, text in enumerate(reversed(steps)) if text.endswith(("loop", "batches"))), 0)
    trained = any(text.endswith(("training loop", "epoch loop", "training step", "training batch")) for text in steps)
    if (function is not None and function.name == "forward") or after > 2 or not trained:
        return False
    loop = code.batch_loop(call)
    names = set(code.stored(loop)) if loop is not None else set()
    names |= dependents(function) if function is not None else set()
    return mentions(call.args[0], names)


def _costly(code: Code, call: ast.Call) -> str:
    name = code.full_name(call.func)
    if name in _COSTLY or (name.startswith(_COSTLY_PREFIXES) and not name.endswith(_CHEAP)):
        return "computes the same result for"
    if _tokenizes(code, call) or _is_asked_of_sample(code, call):
        return "tokenizes the text of"
    if _is_module_call(code, call.func) or _is_partial(code, call.func):
        return "computes the same result for"
    if last_name(call.func) == "resize" and not name and _is_picture(code, call):
        return "resizes the picture of"
    if _is_spectrogram(code, call):
        return "computes the same result for"
    return ""


def _is_spectrogram(code: Code, call: ast.Call) -> bool:
    """Recognise `self.mel_spectrogram(wave)` computed from a sample, not read from a file."""
    function, name = code.function(call), last_name(call.func).lower()
    if function is None or "spectrogram" not in name or not dotted(call.func).startswith("self.") or not call.args:
        return False
    computes = not name.startswith(("load", "read", "save", "plot", "get"))
    return computes and mentions(call.args[0], dependents(function))


def _is_partial(code: Code, node: ast.expr) -> bool:
    """Recognise a call of `self.parse = partial(smiles_to_bigraph, …)`."""
    return any(
        isinstance(value, ast.Call) and code.full_name(value.func) == "functools.partial" and value.args
        and code.full_name(value.args[0]) in _COSTLY
        for value in set_to(code, node)
    )  # fmt: skip


def _tokenizes(code: Code, call: ast.Call) -> bool:
    """Recognise a call with the arguments of a tokenizer, or of an object loaded as a tokenizer."""
    words = {word.arg for word in call.keywords}
    name = last_name(call.func)
    if len(words & _TOKENIZING) >= 2 and name not in ("generate", "decode", "batch_decode") and "pad" not in name:
        return True
    term = code.full_name(call.func) or _source(code, call.func)
    return "Tokenizer" in term and name not in ("decode", "batch_decode", "pad", "from_pretrained")


def _is_asked_of_sample(code: Code, call: ast.Call) -> bool:
    """Recognise `self.tokenizer.encode(text)` and `self.tokenize([text])` in `__getitem__`, on text of the sample."""
    function, callee = code.function(call), call.func
    if function is None or not _gives_samples(code, function) or not isinstance(callee, ast.Attribute) or not call.args:
        return False
    if not dotted(callee).startswith("self.") or not mentions(call.args[0], dependents(function)):
        return False
    if callee.attr not in ("encode", "encode_plus"):
        return "tokeniz" in callee.attr.lower()
    words = {word.arg for word in call.keywords}
    return "tokeniz" in dotted(callee.value).lower() or bool(words & _TOKENIZING)


def _gives_samples(code: Code, function: Definition) -> bool:
    """Tell whether the function is a method of a class that defines `__getitem__`."""
    owner = code.parent(function)
    return isinstance(owner, ast.ClassDef) and any(
        getattr(statement, "name", "") == "__getitem__" for statement in owner.body
    )


def _source(code: Code, node: ast.expr) -> str:
    """Return the `from_pretrained` that created an object: `AutoTokenizer.from_pretrained` for self.tokenizer."""
    if isinstance(node, ast.Attribute) and node.attr in ("encode", "encode_plus", "tokenize", "__call__"):
        node = node.value
    for value in set_to(code, node):
        if isinstance(value, ast.Call):
            name = code.full_name(value.func)
            if name.endswith("from_pretrained"):
                return name
    return ""


def _is_module_call(code: Code, node: ast.expr) -> bool:
    """Recognise a call of `self.mel = torchaudio.transforms.MelSpectrogram(…)`."""
    origins = (
        [node] if isinstance(node, ast.Call) else _table_entries(code, node) or dataset_transforms.origins(code, node)
    )
    return any(dataset_transforms.repeated(code, value) is not None for value in origins)


def _table_entries(code: Code, node: ast.expr) -> list[ast.expr]:
    """Return the values stored in a table whose entry is called: `self.resamplers[rate] = Resample(rate)`."""
    if not isinstance(node, ast.Subscript):
        return []
    name = ast.unparse(node.value)
    return [
        assignment.value
        for assignment in code.nodes(ast.Assign)
        if isinstance(assignment, ast.Assign) and isinstance(assignment.targets[0], ast.Subscript)
        if ast.unparse(assignment.targets[0].value) == name
    ]


def _is_picture(code: Code, call: ast.Call) -> bool:
    """Recognise `image.resize((w, h))` of a picture opened in the same function, not of a tensor or an array."""
    function = code.function(call)
    if function is None or not isinstance(call.func, ast.Attribute):
        return False
    opened = {
        target.id
        for node in walk(function)
        if isinstance(node, ast.Assign)
        and any(
            isinstance(inner, ast.Call) and code.full_name(inner.func).startswith("PIL.Image.")
            for inner in walk(node.value)
        )
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    base: ast.expr = call.func.value
    opened |= _passed_pictures(code, call)
    direct = any(
        isinstance(inner, ast.Call) and code.full_name(inner.func).startswith("PIL.Image.") for inner in walk(base)
    )
    return direct or mentions(base, dependents(function, opened) if opened else set())


def _passed_pictures(code: Code, call: ast.Call) -> set[str]:
    """Return the parameters for which a caller passes a picture that it opened."""
    reference = code.reference(call)
    facts = code.project.function(reference) if reference is not None else None
    names = facts.parameters if facts is not None else ()
    shift = 1 if facts is not None and facts.owner and not is_static(facts) else 0
    return {
        name
        for number, name in enumerate(names)
        for _, invocation in (code.project.callers.get(reference, ()) if reference is not None else ())
        if _is_opened(argument(invocation, number - shift, name))
    }


def _is_opened(term: Term | None) -> bool:
    if not isinstance(term, tuple):
        return False
    return (term[0] == "name" and str(term[1]).startswith("PIL.Image.")) or any(map(_is_opened, term[1:]))


def _inside_costly(code: Code, call: ast.Call) -> bool:
    """Tell whether the call is inside another costly call, which is reported instead."""
    for outer in code.ancestors(call):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.Call) and _costly(code, outer):
            return True
    return False


def _is_random(code: Code, call: ast.Call, function: Definition) -> bool:
    """Tell whether the input or the parameters are drawn at random each time."""
    drawn = {
        target.id
        for node in walk(function)
        if isinstance(node, ast.Assign) and (_draws(code, node.value) or _applies_random(code, node.value))
        for names in node.targets
        for target in walk(names)
        if isinstance(target, ast.Name)
    }
    if _draws(code, call) or (drawn and mentions(call, dependents(function, drawn))):
        return True
    return any(isinstance(outer, ast.If) and _draws(code, outer.test) for outer in code.ancestors(call))


def _only_resizes(code: Code, call: ast.Call) -> bool:
    return any(dataset_transforms.only_resizes(code, origin) for origin in dataset_transforms.origins(code, call.func))


def _applies_random(code: Code, value: ast.expr) -> bool:
    """Recognise `self.crop(image)` for a transform that was composed of random ones."""
    return isinstance(value, ast.Call) and any(
        map(dataset_transforms.is_random, dataset_transforms.origins(code, value.func))
    )


def _draws(code: Code, node: ast.AST) -> bool:
    for inner in walk(node):
        if not isinstance(inner, ast.Call):
            continue
        name = code.full_name(inner.func)
        last = last_name(inner.func).lower()
        if name.startswith(("random.", "numpy.random.", "torch.rand")) or "random" in last or "augment" in last:
            return True
        if last in ("choice", "uniform", "randint", "shuffle", "rand", "randn", "permutation", "normal_", "integers"):
            return True
    return False
