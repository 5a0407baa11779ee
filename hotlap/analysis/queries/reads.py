"""Finds calls that read a file, and what sort of file that is."""

from __future__ import annotations

import ast

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import DEAD, ERROR, FIRST, FLAG, RARE, TURN, Function
from hotlap.analysis.parse.terms import FILE
from hotlap.analysis.queries.code import Code, keyword, last_name
from hotlap.analysis.queries.samples import set_to

TABLE, ARRAY, TEXT, ARCHIVE, PICTURE, SOUND = "table", "array", "text", "archive", "picture", "sound"
_SORTS = {
    TABLE: "pandas.read_csv pandas.read_parquet pandas.read_json pandas.read_excel pandas.read_pickle pandas.read_hdf "
    "pandas.read_feather pandas.read_table pandas.read_fwf pandas.read_sql polars.read_csv polars.read_parquet "
    "pyarrow.parquet.read_table dask.dataframe.read_csv",
    ARRAY: "numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile torch.load joblib.load scipy.io.loadmat "
    "scipy.sparse.load_npz safetensors.torch.load_file",
    ARCHIVE: "h5py.File zarr.open zarr.open_group xarray.open_dataset netCDF4.Dataset lmdb.open sqlite3.connect "
    "ase.db.connect zipfile.ZipFile tarfile.open tables.open_file uproot.open",
    PICTURE: "PIL.Image.open cv2.imread imageio.imread imageio.v2.imread imageio.v3.imread skimage.io.imread "
    "torchvision.io.read_image torchvision.io.decode_image matplotlib.pyplot.imread matplotlib.image.imread "
    "tifffile.imread rasterio.open nibabel.load pydicom.dcmread pydicom.read_file SimpleITK.ReadImage "
    "torchvision.io.read_video cv2.VideoCapture decord.VideoReader openslide.OpenSlide",
    SOUND: "librosa.load torchaudio.load soundfile.read scipy.io.wavfile.read wave.open audioread.audio_open",
}
READS = {name: sort for sort, names in _SORTS.items() for name in names.split()}
MODELS = frozenset(("torch.load", "joblib.load", "safetensors.torch.load_file"))  # as often weights as data
_RARELY = frozenset((DEAD, ERROR, FIRST, FLAG, RARE, TURN))
WORDS = (
    ".read_",
    "load",
    "File(",
    "open(",
    "imread",
    "dcmread",
    "connect(",
    "ReadImage",
    "loadtxt",
    "genfromtxt",
    "wavfile",
    "soundfile",
)


def read_of(code: Code, call: ast.Call) -> str | None:
    """Return what sort of file a call reads, or None if it reads none."""
    name = code.full_name(call.func)
    if name in READS:
        return None if _is_handle(code, call) else READS[name]
    if name == "open":
        return TEXT if _is_reading(call, 1) else None
    if isinstance(call.func, ast.Attribute) and not name:
        if call.func.attr in ("read_text", "read_bytes") and not call.args:
            return TEXT
        if call.func.attr == "open" and _is_path(code, call.func.value):
            return TEXT if _is_reading(call, 0) else None
    return None


def _is_handle(code: Code, call: ast.Call) -> bool:
    """Match an argument that is an open file or a buffer in memory: the cost is where that is made."""
    if not call.args:
        return False
    first = call.args[0]
    if isinstance(first, ast.Call):
        return last_name(first.func) in ("BytesIO", "StringIO", "open", "get")
    made = [value for value in set_to(code, first) if isinstance(value, ast.Call)]
    if any(last_name(value.func) in ("BytesIO", "StringIO") for value in made):
        return True
    return code.kind(first) == FILE or last_name(first) in ("buffer", "buf", "stream")


def _is_reading(call: ast.Call, place: int) -> bool:
    mode = call.args[place] if len(call.args) > place else keyword(call, "mode")
    return mode is None or (isinstance(mode, ast.Constant) and not set(str(mode.value)) & set("wax+"))


def _is_path(code: Code, node: ast.expr) -> bool:
    """Match paths, as in `Path(…).open()` and `(folder / name).open()`, but not `Image.open` and its like."""
    if isinstance(node, ast.Call):
        return code.full_name(node.func) in ("pathlib.Path", "pathlib.PurePath")
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def reading_functions(project: Project, reference: Reference) -> bool:
    """Return whether a function of the project reads a table or an array on every call."""
    function: Function = project.function(reference)
    return any(
        isinstance(call.callee, tuple)
        and call.callee[0] == "name"
        and READS.get(call.callee[1]) in (TABLE, ARRAY, ARCHIVE)
        and call.callee[1] not in MODELS
        and not any(frame in _RARELY for frame in call.stack)
        for call in function.calls
    )
