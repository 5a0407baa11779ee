"""Finds mentions of settings that concern a whole program: a few words, searched outside of comments."""

from __future__ import annotations

import re

from hotlap.analysis.parse.words import Words, cores

AUTOCAST, TF32, AUTOTUNER, CHANNELS_LAST, COMPILE = "autocast", "tf32", "autotuner", "channels_last", "compile"
CUDA, CPU_ONLY, CONVOLUTION, CONVOLUTION_2D, RECURRENT = "cuda_used", "cpu_only", "conv", "conv2d", "recurrent"
PATCHES, CHANGING_SHAPES, GRAPH_NETWORK = "patches", "shapes", "graphs"
COMMAND_LINE, LAUNCHED, WORKERS, OTHER_START = "command_line", "launched", "workers", "spawn"
NETWORK, CONVOLUTION_1D, STEPS, SCRIPT = "network", "conv1d", "steps", "script"
DEVICES = "devices"  # anything that may move a model or a batch off the host
NO_WORKERS, SOME_WORKERS = "workers_zero", "workers_some"  # the value or default of numbers of workers
MOVES = "moves"  # moves something to a device, or uses a framework that does
SPLITS = "splits"  # looks up which worker it runs in
SHARDED = "sharded"  # parameters or tensors are spread over processes, which inference_mode does not allow
UNFUSED = "unfused"  # sparse or complex parameters, or a device without fused steps
SINGLE = "single"  # may run on a device without double precision
ACCELERATED = "accelerated"  # may run on a GPU
ROWS_FIRST = "rows_first"  # what fails on memory with the channels last: views across channels, 3-d convolutions
NO_HALF = "no_half"  # operations that half precision lacks
TRAINER = "trainer"
LEFT_WORKERS = "workers_left"  # 0 workers as an argument, passed or by default

_NETS = (
    "ResNet", "resnet", "ResNeXt", "resnext", "UNet", "Unet", "unet", "fficientNet", "fficientnet", "obileNet",
    "obilenet", "enseNet", "ensenet", "VGG", "vgg1", "onvNeXt", "onvnext",
)  # fmt: skip
_WORDS: dict[str, tuple[str, ...]] = {
    AUTOCAST: (
        "autocast", "GradScaler", "fp16", "bf16", "float16", "mixed_precision", "half_precision", ".half(", "deepspeed",
        "fp8", "--precision",
    ),
    TF32: ("tf32", "matmul_precision", "fp32_precision"),
    AUTOTUNER: ("cudnn.benchmark", "cudnn_benchmark", "benchmark=True", "benchmark=False", "deterministic"),
    CHANNELS_LAST: ("channels_last", "memory_format", "NHWC"),
    COMPILE: (
        "torch.compile", "torch_compile", "import compile", "use_compile", "compile_model", "jit.script", "jit.trace",
        "make_graphed_callables", "torch_xla", "--compile",
    ),
    CUDA: ("Accelerator(", "Fabric(", "torch.accelerator"),
    CPU_ONLY: ("accelerator='cpu'", 'accelerator="cpu"', "use_cpu=True", "no_cuda=True", "Accelerator(cpu=True"),
    CONVOLUTION: ("Transpose1d", "timm.", "torchvision.models"),
    CONVOLUTION_1D: ("nn.Conv1d(",),
    CONVOLUTION_2D: ("nn.Conv2d(", "nn.Conv3d(", "Transpose2d(", "Transpose3d("),
    NETWORK: _NETS,
    STEPS: (".step(",),
    SCRIPT: ("__main__",),
    RECURRENT: ("LSTM(", "GRU(", "nn.RNN(", "LSTMCell(", "GRUCell("),
    PATCHES: ("PatchEmbed", "patch_embed", "ViT", "vit_", "Swin", "patch_size"),
    CHANGING_SHAPES: (
        "pad_sequence", "multi_scale", "multiscale", "MultiScale", "rcnn", "RCNN", "retinanet", "aspect_ratio_group",
        "models.detection", "bucket",
    ),
    GRAPH_NETWORK: ("torch_geometric", "import dgl"),
    COMMAND_LINE: ("HfArgumentParser", "TrlParser", "LightningCLI("),
    LAUNCHED: ("Accelerator(",),
    MOVES: ("Accelerator(", ".cuda(", ".to(", "'cuda", '"cuda', "Trainer(", "Fabric("),
    SPLITS: ("get_worker_info",),
    SHARDED: ("FullyShardedDataParallel", "fully_shard", "FSDP", "deepspeed", "distributed.rpc", "torch_xla"),
    UNFUSED: ("sparse=True", "SparseAdam", "torch_xla", "cfloat", "complex64", "complex128", "ComplexFloat"),
    SINGLE: (
        "torch.accelerator", "Accelerator(", "Fabric(", "ightning", "xpu", "torch_xla", "directml", "hpu", "torch_npu",
        "--device", "args.device", "opt.device", "config.device", "cfg.device", "default_device", "TrainingArguments",
    ),
    ACCELERATED: (
        "cuda", "gpu", "Gpu", "GPU", "ccelerat", "Trainer(", "Fabric(", "xpu", "default_device", "deepspeed",
        "DataParallel", "local_rank", "--device", "torch_xla", "hpu",
    ),
    ROWS_FIRST: (".view(", ".view_as(", "Conv3d(", "Transpose3d("),
    NO_HALF: ("fft", "linalg", "cholesky", "complex", "sparse", "logdet"),
    TRAINER: ("Trainer",),
    OTHER_START: ("'spawn'", '"spawn"', "forkserver", ".spawn("),
}  # fmt: skip
_NAMES: dict[str, list[str]] = {}  # the features of each word
for _feature, _words in _WORDS.items():
    for _word in _words:
        _NAMES.setdefault(_word, []).append(_feature)
_CORES = cores(_NAMES)
_MADE = re.compile(r"(?<!class )(?<!\w)$")  # a call, not the definition of a class of the same name
# A word that each match contains; the pattern; and one for the text before a match.
_PATTERNS: dict[str, tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...]] = {
    AUTOCAST: (
        ("amp", re.compile(r"amp(?![a-z]|\.custom_| import custom_)"), re.compile(r"(?:^|[^a-zA-Z])$")),
        (
            "precision",
            re.compile(r"precision(?:\s*[=:]\s*(?:str\s*=\s*)?['\"]|=[^,\n]*precision|=16)"),
            re.compile(r"\W$"),
        ),
    ),
    AUTOTUNER: (("benchmark", re.compile(r"benchmark\s*=\s*(?:True|False)"), re.compile(r"[.\w]$")),),
    COMPILE: (
        ("compile", re.compile(r"\.compile\("), re.compile(r"(?<!\bre)(?<!\bregex)(?<!\bsre)$")),
        ("compile", re.compile(r"compile(?:\s*[:=]\s*(?:bool|True|False)|['\"])"), re.compile(r"")),
    ),
    CUDA: (("cuda", re.compile(r"cuda\b"), re.compile(r"(?:^|\W)$")),),
    SINGLE: (("mps", re.compile(r"mps\b"), re.compile(r"(?:^|\W)$")),),
    CONVOLUTION_1D: (("Conv1d", re.compile(r"Conv1d\("), _MADE),),
    CONVOLUTION_2D: (("Conv", re.compile(r"Conv[23]d\("), _MADE),),
    WORKERS: (
        (
            "workers",
            re.compile(r"workers['\"]?\s*(?:[=:]|,\s*(?:type=int,\s*)?default=)\s*(?:int\s*=\s*)?[1-9a-z]"),
            re.compile(r""),
        ),
    ),
}
_NUMBER = r"(?:\s*:\s*[\w.\[\]| ]+=\s*|['\"]\s*[:,]\s*|['\"][^\n)]*default\s*=\s*)"  # of a field, entry or option
_NUMBERS = {
    NO_WORKERS: re.compile(rf"workers{_NUMBER}0\b"),
    LEFT_WORKERS: re.compile(r"workers\s*=\s*0\b"),
    SOME_WORKERS: re.compile(rf"workers(?:{_NUMBER}|\s*=\s*)(?:[1-9]|min\(|max\(|os\.|multiproc)"),
}
_DEVICE_CORES = cores(
    "cuda transformers .to( ightning xla xpu gpu Gpu GPU ccelerat Trainer Fabric fabric ignite catalyst fastai skorch "
    "deepspeed horovod default_device DataParallel composer".split()
)
_DEVICE = {"mps": re.compile(r"\bmps\b"), "device": re.compile(r"device\s*=\s*(?![\w.\[\]]+\.device\b)")}
_ON_HOST = re.compile(r"device\s*=\s*(?:torch\.device\()?['\"]cpu['\"]")  # the only device that is named
_COMMENT = re.compile(r"\n[ \t]*#[^\n]*")


def features(words: Words) -> frozenset[str]:
    """Return the names of all features that the text mentions."""
    plain = _COMMENT.sub("\n", words.text) if "#" in words.text else words.text
    found = {name for word in words.present(_CORES, plain) for name in _NAMES[word]}
    found |= {name for name, pairs in _PATTERNS.items() if name not in found and _matches(words, plain, pairs)}
    if words.present(_DEVICE_CORES, plain) or any(
        words.mentions(word) and pattern.search(plain) for word, pattern in _DEVICE.items()
    ):
        found.add(DEVICES)
    if words.mentions("device") and "device" in plain and not _ON_HOST.search(plain):
        found.add(ACCELERATED)  # an argument, which may be any device
    if words.mentions("workers"):
        found |= {name for name, pattern in _NUMBERS.items() if pattern.search(plain)}
    if words.mentions("Conv2d") and "class Conv2d(" in plain:
        found -= {CONVOLUTION, CONVOLUTION_1D, CONVOLUTION_2D}  # a library of layers for others
    return frozenset(found)


def _matches(words: Words, text: str, patterns: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...]) -> bool:
    return any(
        before.search(text[max(0, match.start() - 8) : match.start()])
        for word, pattern, before in patterns
        if words.mentions(word)
        for match in pattern.finditer(text)
    )
