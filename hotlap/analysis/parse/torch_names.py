"""Tells by name what functions of torch and related libraries return. No other module knows their vocabulary."""

from __future__ import annotations

from hotlap.analysis.parse.terms import (
    ACCELERATOR,
    BATCH,
    DATASET,
    DEVICE,
    EXTENT,
    FRAME,
    HOST,
    LOADER,
    LOGGER,
    MODULE,
    NO_GRAD,
    NUMBER,
    NUMPY,
    OPTIMIZER,
    SCALER,
    SCHEDULER,
    STATE,
    TENSOR,
    TENSOR_DATASET,
    TENSORS,
    TEXT,
    UNKNOWN,
    WRITER,
    Term,
    hosted,
    join,
    moved,
)

CREATION = frozenset(
    "zeros ones empty full rand randn randint randperm arange linspace logspace eye tensor as_tensor scalar_tensor "
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like from_numpy tril_indices "
    "triu_indices hann_window normal complex".split()
)
LIKE = frozenset(name for name in CREATION if name.endswith("_like"))
RANDOM = frozenset("rand randn randint randperm rand_like randn_like randint_like normal".split())
CONSTRUCTORS = frozenset(
    "Tensor FloatTensor LongTensor IntTensor BoolTensor DoubleTensor HalfTensor ByteTensor ShortTensor".split()
)
_NO_TENSOR = {
    "device": DEVICE, "Generator": UNKNOWN, "Size": NUMBER, "finfo": UNKNOWN, "iinfo": UNKNOWN, "numel": NUMBER,
    "is_tensor": NUMBER, "is_floating_point": NUMBER, "manual_seed": UNKNOWN, "save": UNKNOWN, "load": UNKNOWN,
    "no_grad": NO_GRAD, "inference_mode": NO_GRAD, "enable_grad": UNKNOWN, "set_grad_enabled": UNKNOWN,
    "autocast": UNKNOWN, "get_default_dtype": UNKNOWN, "set_num_threads": UNKNOWN, "is_grad_enabled": NUMBER,
    "seed": NUMBER, "initial_seed": NUMBER, "set_float32_matmul_precision": UNKNOWN, "typename": TEXT,
    "is_complex": NUMBER, "set_default_dtype": UNKNOWN, "set_default_device": UNKNOWN, "promote_types": UNKNOWN,
    "Stream": UNKNOWN, "Event": UNKNOWN, "get_rng_state": HOST, "set_rng_state": UNKNOWN, "is_storage": NUMBER,
    "get_num_threads": NUMBER, "is_inference_mode_enabled": NUMBER, "set_printoptions": UNKNOWN,
    "equal": NUMBER, "allclose": NUMBER, "is_nonzero": NUMBER, "is_autocast_enabled": NUMBER, "result_type": UNKNOWN,
}  # fmt: skip
LOADER_NAMES = frozenset(
    (
        "torch.utils.data.DataLoader",
        "torch.utils.data.dataloader.DataLoader",
        "torch_geometric.loader.DataLoader",
        "torch_geometric.data.DataLoader",
        "torchdata.stateful_dataloader.StatefulDataLoader",
    )
)
TORCH_LOADERS = frozenset(("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"))
_IN_MEMORY = "torch.utils.data.TensorDataset"
_BY_NAME: dict[str, Term] = {
    **dict.fromkeys(LOADER_NAMES, LOADER),
    "torch.utils.tensorboard.SummaryWriter": WRITER,
    "torch.utils.tensorboard.writer.SummaryWriter": WRITER,
    "tensorboardX.SummaryWriter": WRITER,
    "wandb.init": WRITER,
    "logging.getLogger": LOGGER,
    "accelerate.logging.get_logger": LOGGER,
    "accelerate.Accelerator": ACCELERATOR,
    "accelerate.accelerator.Accelerator": ACCELERATOR,
    "lightning.Fabric": ACCELERATOR,
    "lightning.fabric.Fabric": ACCELERATOR,
    "lightning_fabric.Fabric": ACCELERATOR,
    "torch.amp.GradScaler": SCALER,
    "torch.amp.grad_scaler.GradScaler": SCALER,
    "torch.cuda.amp.GradScaler": SCALER,
    "torch.cuda.amp.grad_scaler.GradScaler": SCALER,
    "torch.cpu.amp.GradScaler": SCALER,
    "deepspeed.initialize": ("tuple", MODULE, OPTIMIZER, LOADER, SCHEDULER),
}
_PLAIN_PREFIXES = (
    "torch.cuda.", "torch.backends.", "torch.distributed.", "torch.utils.", "torch.jit.", "torch.onnx.", "torch.mps.",
    "torch.profiler.", "torch.random.", "torch.autograd.", "torch.multiprocessing.", "torch.amp.", "torch.xpu.",
    "torch.version.", "torch.hub.", "torch.library.", "torch.ops.", "torch.export.", "torch.package.", "torch.fx.",
    "torch.compiler.", "torch._", "torch.accelerator.", "torch.cpu.", "torch.quantization.", "torch.ao.",
)  # fmt: skip
_TENSOR_SUBMODULES = ("torch.linalg.", "torch.fft.", "torch.special.", "torch.sparse.", "torch.masked.", "torch.func.")


def called(name: str, arguments: list[Term], keywords: dict[str, Term]) -> Term | None:
    """Return what a library function of this full name returns, or None if the name is unknown."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.startswith("torch."):
        return _torch_call(name, arguments, keywords)
    if name.startswith("numpy."):
        return ("list", NUMPY) if name in ("numpy.array_split", "numpy.split") else NUMPY
    if name.startswith("pandas."):
        return UNKNOWN if name[7:] in _NO_FRAME else FRAME
    if name in ("geopandas.read_file", "geopandas.GeoDataFrame", "geopandas.read_parquet"):
        return FRAME
    if name.startswith(("math.", "time.", "os.", "random.", "datetime.", "psutil.", "platform.", "sys.")):
        return NUMBER
    if name.startswith(("torchvision.models.", "timm.create_model")) or name.endswith("Model.from_pretrained"):
        return MODULE
    if name.startswith("transformers.") and name.endswith(".from_pretrained"):
        return UNKNOWN if any(part in name for part in ("Tokenizer", "Processor", "Config")) else MODULE
    return None


def _torch_call(name: str, arguments: list[Term], keywords: dict[str, Term]) -> Term:
    short = name[6:]
    if short in _NO_TENSOR:
        return _NO_TENSOR[short]
    if short.startswith(("get_", "set_", "is_", "are_", "use_")):
        return UNKNOWN
    if short == "compile" and arguments:
        return arguments[0]
    if short in CREATION or short in CONSTRUCTORS:
        return _created(short, arguments, keywords)
    if name.startswith("torch.nn."):
        return _nn_call(name, arguments)
    if name.startswith("torch.optim."):
        return SCHEDULER if ".lr_scheduler." in name or ".swa_utils." in name else OPTIMIZER
    if name.startswith("torch.utils.data.") and name.endswith("Dataset"):
        return TENSOR_DATASET if name.endswith(".TensorDataset") else DATASET
    if name.startswith("torch.utils.checkpoint.checkpoint") or name.startswith(_TENSOR_SUBMODULES):
        return TENSOR
    if name.startswith(_PLAIN_PREFIXES):
        return ("list", TENSOR) if name == "torch.autograd.grad" else UNKNOWN
    return UNKNOWN if "." in short else _operation(arguments, keywords)


def _created(short: str, arguments: list[Term], keywords: dict[str, Term]) -> Term:
    if short in LIKE and "device" not in keywords and arguments:
        return arguments[0] if arguments[0] != UNKNOWN else TENSOR
    if short == "as_tensor" and "device" not in keywords and arguments and arguments[0] in TENSORS:
        return arguments[0]
    return TENSOR if "device" in keywords else HOST


def _nn_call(name: str, arguments: list[Term]) -> Term:
    if name.startswith("torch.nn.functional."):
        return _operation(arguments, {})
    if name.startswith("torch.nn.utils.clip_grad") or name == "torch.nn.Parameter":
        return TENSOR
    if name.startswith("torch.nn.utils.rnn."):
        return ("list", TENSOR)
    if name.startswith(("torch.nn.init.", "torch.nn.utils.")):
        return UNKNOWN
    return MODULE


def _operation(arguments: list[Term], keywords: dict[str, Term]) -> Term:
    """Return what torch.cat, torch.mean, … return: a device tensor unless all inputs are known to be on the host."""
    parts = [_flat(argument) for argument in (*arguments, *keywords.values())]
    if any(isinstance(part, tuple) for part in parts) and TENSOR not in parts:
        return ("operation", *(part for part in parts if isinstance(part, tuple) or part in TENSORS))
    return result_of(parts)


def result_of(parts: list[Term]) -> Term:
    """Return the result of an operation on all of these."""
    known = [part for part in parts if part not in (NUMBER, EXTENT, TEXT, DEVICE, NUMPY)]
    if known and all(part in (HOST, BATCH) for part in known):
        return BATCH if BATCH in known else HOST
    return TENSOR


def _flat(term: Term) -> Term:
    if isinstance(term, tuple) and term[0] in ("list", "tuple"):
        result: Term = UNKNOWN
        for part in term[1:]:
            result = join(result, _flat(part))
        return result
    return term


_NO_FRAME = frozenset("read_pickle isna isnull notna notnull Timestamp Timedelta factorize set_option".split())
_FRAME_GIVES: dict[str, Term] = {  # methods and attributes of a frame or column that are neither
    **dict.fromkeys(("values", "to_numpy", "unique", "array", "argsort"), NUMPY),
    **dict.fromkeys(("tolist", "to_list", "to_dict", "index", "columns", "groups", "to_records", "dtypes"), UNKNOWN),
    **dict.fromkeys(("empty", "nunique", "item"), NUMBER),
    **dict.fromkeys(("dtype", "name", "style", "to_csv", "to_string", "to_json", "info"), UNKNOWN),
}

USUAL = {  # conventional names that a star import re-exports
    "torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "optim": "torch.optim", "np": "numpy",
    "pd": "pandas", "os": "os", "math": "math", "tqdm": "tqdm.tqdm", "gc": "gc", "wandb": "wandb", "copy": "copy",
    "DataLoader": "torch.utils.data.DataLoader", "Dataset": "torch.utils.data.Dataset",
    "TensorDataset": "torch.utils.data.TensorDataset", "SummaryWriter": "torch.utils.tensorboard.SummaryWriter",
}  # fmt: skip

BUILTINS = frozenset(
    "len int float bool str repr round abs sum max min range list tuple set dict sorted reversed enumerate zip map "
    "filter iter next print isinstance getattr hasattr type any all open format super id hash vars callable pow divmod "
    "input setattr".split()
)

_OF_ALL = {"state_dict": STATE, "item": NUMBER}  # what methods of these names return, whatever they are called on
TO_NUMBER = frozenset("item tolist __float__ __int__ is_floating_point is_contiguous data_ptr element_size".split())
SIZES = frozenset("size dim ndimension numel nelement stride ndim shape storage_offset get_device".split())
ONLY_TENSORS = frozenset(
    "unsqueeze detach permute masked_fill masked_fill_ gather scatter scatter_ scatter_add_ contiguous requires_grad_ "
    "log_softmax softmax sigmoid index_select masked_select logsumexp topk expand expand_as type_as zero_ fill_ add_ "
    "mul_ copy_ detach_ index_fill new_zeros new_ones new_tensor new_full new_empty backward unfold chunk bmm matmul "
    "relu retain_grad nan_to_num view_as".split()
)
_MODULE_SELF = frozenset(
    "to cuda cpu eval train half float double bfloat16 requires_grad_ apply compile share_memory xpu mps".split()
)
_MODULE_OTHER = frozenset(
    "parameters named_parameters state_dict load_state_dict modules named_modules children named_children buffers "
    "named_buffers zero_grad register_buffer register_forward_hook register_parameter add_module extra_repr "
    "save_pretrained push_to_hub gradient_checkpointing_enable resize_token_embeddings get_submodule print "
    "floating_point_ops no_sync log log_dict".split()
)


WEIGHTS: dict[str, Term] = {
    "parameters": ("list", TENSOR),
    "buffers": ("list", TENSOR),
    "named_parameters": ("list", ("tuple", TEXT, TENSOR)),
    "named_buffers": ("list", ("tuple", TEXT, TENSOR)),
    "named_modules": ("list", ("tuple", TEXT, MODULE)),
    "named_children": ("list", ("tuple", TEXT, MODULE)),
    "items": ("list", ("tuple", TEXT, MODULE)),
    "values": ("list", MODULE),
    "keys": ("list", TEXT),
}


_OF_MAPPINGS = ("items", "values", "keys")


def method(kind: str, name: str, arguments: list[Term], on_host: bool) -> Term:
    """Return what a method of something of this kind returns."""
    if name in _OF_ALL:
        return _OF_ALL[name]
    if kind in TENSORS:
        return _tensor_method(kind, name, arguments, on_host)
    if kind == MODULE:
        return _module_method(name)
    if kind == NUMPY:
        return NUMBER if name in ("item", "tolist") else NUMPY
    if kind == ACCELERATOR:
        return _accelerator_method(name)
    if kind == SCALER:
        return TENSOR if name == "scale" else NUMBER if name.startswith("get_") else UNKNOWN
    if kind == FRAME:
        return _FRAME_GIVES.get(name, FRAME)
    if kind in (TEXT, NUMBER):
        return kind
    if name in ("cpu", "numpy") or (name == "to" and on_host):
        return NUMPY if name == "numpy" else HOST
    return TENSOR if name in ONLY_TENSORS else UNKNOWN if name in _OF_MAPPINGS else WEIGHTS.get(name, UNKNOWN)


def _module_method(name: str) -> Term:
    if name in WEIGHTS:
        return WEIGHTS[name]
    if name in SIZES or name in TO_NUMBER:
        return EXTENT
    return MODULE if name in _MODULE_SELF else UNKNOWN if is_accessor(name) else TENSOR


def method_of(known: Term, name: str) -> Term:
    """Return what a method returns, also for a dictionary."""
    if isinstance(known, str):
        return method(known, name, [], on_host=False)
    gives: dict[str, Term] = {"items": ("list", ("tuple", TEXT, known[1])), "values": ("list", known[1])}
    return known[1] if name in ("get", "pop") else gives.get(name, UNKNOWN)


def is_accessor(name: str) -> bool:
    """Match a method that returns something about a module instead of running it."""
    return name in _MODULE_OTHER or name.startswith(("get_", "num_", "is_", "has_", "set_", "save", "load", "count"))


def _tensor_method(kind: str, name: str, arguments: list[Term], on_host: bool) -> Term:
    if name in TO_NUMBER:
        return NUMBER
    if name in SIZES:
        return EXTENT
    if name in ("cpu", "to", "cuda"):
        return hosted(kind) if name == "cpu" or on_host else moved(kind)
    if name == "numpy":
        return NUMPY
    if name in ("backward", "register_hook", "retain_grad", "keys", "record_stream"):
        return UNKNOWN
    if name.startswith(("get_", "is_", "has_")):
        return UNKNOWN
    if name == "items":  # a batch, or a model's output, that is a mapping
        return ("list", ("tuple", TEXT, kind))
    result: Term = kind
    for argument in arguments:
        if argument == TENSOR:
            result = TENSOR
    return result


def _accelerator_method(name: str) -> Term:
    if name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes", "all_gather", "all_reduce"):
        return TENSOR
    return MODULE if name == "unwrap_model" else UNKNOWN


def _holds_tensor(name: str) -> bool:
    """Match an attribute of a tensor, or of a model's output, that is a tensor itself."""
    if name in ("requires_grad", "is_leaf", "id"):
        return False
    return len(name) <= 2 or name.rsplit("_", 1)[-1].removesuffix("s") in _PARTS


_PARTS = frozenset(
    "loss logit hidden output prob pred prediction score embedding feature grad data mask label value mean std real "
    "imag box boxe sample state target image input sequence attention weight indice coord los logits "
    "batch attr pos length".split()
)


def attribute(kind: str, name: str) -> Term:
    if kind in TENSORS:
        if name in ("shape", "ndim", "size"):
            return EXTENT
        return DEVICE if name == "device" else kind if _holds_tensor(name) else UNKNOWN
    if kind == MODULE:
        return MODULE if name not in ("training", "config", "device", "dtype", "weight", "bias") else UNKNOWN
    if kind == FRAME and name in _FRAME_GIVES:
        return _FRAME_GIVES[name]
    if kind in (NUMPY, FRAME):
        return NUMBER if name in ("shape", "size", "ndim") else kind
    if kind == ACCELERATOR:
        return DEVICE if name == "device" else UNKNOWN
    return UNKNOWN


MODULE_BASES = frozenset(
    "Module LightningModule PreTrainedModel Sequential ModuleList ModuleDict ScriptModule PyroModule KerasModel".split()
)
WRITER_METHODS = frozenset("add_scalar add_scalars add_histogram add_image add_images add_text add_figure".split())
