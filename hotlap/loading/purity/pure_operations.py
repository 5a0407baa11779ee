"""The list of operations known to be pure: results depend on the arguments alone, and there are no side effects. An
operation that is not listed is not known to be pure.

Names are looked up in modules that the program has imported, and count only if they still belong to the library. What
the list says of a function is found in `rules.py`.
"""

from __future__ import annotations

import enum
from enum import Enum


class Gives(Enum):
    NEW = enum.auto()  # new memory
    ALIAS = enum.auto()  # possibly the memory of an argument
    FILE = enum.auto()  # new memory, read from a file
    ORDERED = enum.auto()  # new memory; its last digits depend on the number of threads


# Methods of plain values, whatever their type: each is pure for every type that has it.
METHODS = frozenset(
    # text, bytes, numbers
    "encode decode split rsplit splitlines strip lstrip rstrip lower upper title capitalize casefold swapcase replace "
    "startswith endswith find rfind rindex partition rpartition join format format_map zfill ljust rjust center "
    "removeprefix removesuffix isdigit isalpha isalnum isnumeric isdecimal isspace islower isupper isidentifier "
    "translate maketrans expandtabs hex fromhex bit_length bit_count to_bytes from_bytes as_integer_ratio is_integer "
    "conjugate "
    # containers
    "get keys values items copy index count union intersection difference symmetric_difference issubset issuperset "
    "isdisjoint most_common elements total "
    # matches, dates, paths
    "group groups groupdict start end span match fullmatch search findall finditer sub subn "
    "year month day weekday isoweekday isocalendar toordinal timetuple isoformat strftime timestamp total_seconds date "
    "time hour minute second "
    "with_suffix with_name with_stem joinpath relative_to is_relative_to as_posix is_absolute glob rglob iterdir "
    # tensors and arrays
    "size dim numel nelement element_size stride is_contiguous is_floating_point is_complex ndimension data_ptr "
    "float double half bfloat16 int long short byte bool char to type type_as astype cpu numpy detach clone "
    "contiguous tolist item tobytes view view_as reshape reshape_as ravel flatten unflatten squeeze unsqueeze "
    "expand expand_as permute transpose t swapaxes swapdims movedim moveaxis adjoint narrow select unfold diagonal "
    "chunk tensor_split hsplit vsplit unbind index_select masked_select masked_fill gather take take_along_dim "
    "take_along_axis scatter scatter_add index_add index_copy index_fill repeat repeat_interleave tile roll flip "
    "fliplr flipud rot90 sum mean std var prod min max amin amax argmin argmax aminmax median mode nanmean nansum "
    "nanmedian norm cumsum cumprod cummax cummin logsumexp softmax log_softmax sigmoid tanh relu abs absolute neg "
    "negative sign exp expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan atan2 sinh "
    "cosh floor ceil round trunc frac clamp clip clamp_min clamp_max add sub subtract mul multiply div divide "
    "true_divide floor_divide remainder fmod pow float_power matmul mm bmm mv dot outer inner lerp addcmul addcdiv "
    "eq ne lt le gt ge equal allclose isclose isnan isinf isfinite isposinf isneginf isreal nan_to_num any all "
    "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not nonzero argwhere "
    "unique unique_consecutive topk sort_values argsort msort kthvalue searchsorted bincount histc diff tril triu "
    "trace det inverse maximum minimum where new_zeros new_ones new_full new_tensor new_empty to_dense is_sparse "
    "is_cuda get_device ptp swapcase "
    # images
    "convert crop resize rotate transform getpixel getdata getbands getbbox getextrema getchannel getcolors histogram "
    "filter quantize point reduce enhance getexif "
    # tables and their columns
    "iterrows itertuples to_numpy to_dict to_list isin isna isnull notna notnull fillna dropna drop drop_duplicates "
    "reset_index set_index rename head tail nunique value_counts groupby agg aggregate mask between "
    "quantile get_group first last nlargest nsmallest sort_index reindex merge pivot unstack melt explode asstr "
    "iter_batches to_pylist as_py combine_chunks column slice num_rows to_pandas xs droplevel "
    # files
    "read readline readlines read_text read_bytes seek tell close resolve "
    "getvalue getbuffer namelist infolist hexdigest digest".split()
)  # fmt: skip

# Methods that write into their object: pure if the call created it.
WRITES = frozenset(
    "append extend insert remove pop popitem popleft appendleft extendleft clear update add discard setdefault "
    "sort reverse intersection_update difference_update symmetric_difference_update move_to_end subtract "
    "fill put itemset resize partition setflags setfield paste putpixel putdata putalpha putpalette thumbnail load "
    "draft frombytes write writelines requires_grad_ apply_ map_ __setitem__ __delitem__".split()
)
NOT_IN_PLACE = frozenset(
    "random_ uniform_ normal_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_ share_memory_ pin_memory_".split()
)
ORDERED_METHODS = frozenset(
    "sum mean std var prod norm matmul mm bmm mv dot outer inner cumsum cumprod logsumexp softmax log_softmax nansum "
    "nanmean trace det inverse".split()
)
OF_FILES = frozenset("read readline readlines seek tell close getvalue getbuffer".split())  # opened by the call itself
OF_CONTAINERS = frozenset(
    "append extend insert remove pop popitem popleft appendleft extendleft clear update add discard setdefault reverse "
    "intersection_update difference_update symmetric_difference_update move_to_end subtract".split()
)
CALLBACKS = frozenset("apply map applymap pipe transform agg aggregate sub subn filter point".split())
NOW = frozenset(("now", "today"))  # texts that NumPy and pandas take for the current time
# Methods that for some other type write into their object, or rename a file.
ROTATE, REPLACING = "rotate", frozenset("replace rename".split())  # of a deque, of a path
KEEP_A_NUMBER = frozenset("item tolist tobytes numel dim size nelement element_size".split())

_WRITING_OPERATORS = frozenset(
    "setitem delitem iadd isub imul iand ior ixor iconcat itruediv ifloordiv imod ipow imatmul ilshift irshift call "
    "methodcaller".split()
)

# Modules whose functions may return an argument, or a view of one.
ALIASING_MODULES = ("operator", "_operator", "colorsys", "PIL.ImageOps", "torchvision")

# Modules whose functions are all pure, except for the names given.
WHOLE_MODULES: dict[str, frozenset[str]] = {
    "math": frozenset(),
    "cmath": frozenset(),
    "operator": _WRITING_OPERATORS,
    "_operator": _WRITING_OPERATORS,
    "posixpath": frozenset(
        "expandvars expanduser abspath realpath relpath samefile ismount islink lexists exists isfile isdir isjunction "
        "isdevdrive getsize getatime getmtime getctime".split()
    ),
    "genericpath": frozenset(
        "getatime getmtime getctime getsize samefile sameopenfile samestat islink exists lexists isfile isdir "
        "isjunction isdevdrive".split()
    ),
    "textwrap": frozenset(),
    "string": frozenset(),
    "unicodedata": frozenset(),
    "struct": frozenset("pack_into".split()),
    "_struct": frozenset("pack_into".split()),
    "binascii": frozenset(),
    "base64": frozenset("encode decode main".split()),
    "zlib": frozenset(),
    "re": frozenset("purge".split()),
    "colorsys": frozenset(),
    "numpy.linalg": frozenset("diagonal matrix_power matrix_transpose".split()),
    "numpy.fft": frozenset("fft2 fftn ifft2 ifftn".split()),
    "torch.fft": frozenset(),
    "torch._C._fft": frozenset(),
    "torch.linalg": frozenset(("diagonal",)),
    "torch._C._linalg": frozenset(("linalg_diagonal",)),
    "PIL.ImageOps": frozenset(),
    "PIL.ImageChops": frozenset(),
    "scipy.signal": frozenset("abcd_normalize bode deconvolve freqresp freqs lsim".split()),
    "scipy.ndimage": frozenset(),
    "torchvision.transforms.functional": frozenset(),
    "torchvision.transforms.v2.functional": frozenset(
        "gaussian_noise gaussian_noise_image gaussian_noise_video".split()
    ),
}  # fmt: skip

_TORCH_NEW = (
    "tensor zeros ones full empty eye arange linspace logspace zeros_like ones_like full_like empty_like clone stack "
    "cat concat concatenate hstack vstack dstack where flip fliplr flipud roll rot90 abs absolute neg sign exp expm1 "
    "log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan atan2 arctan2 sinh cosh tanh "
    "sigmoid relu floor ceil round trunc frac clamp clip add sub subtract mul multiply div divide true_divide "
    "floor_divide remainder fmod pow float_power eq ne lt le gt ge equal allclose isclose isnan isinf isfinite "
    "nan_to_num any all logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor "
    "bitwise_not maximum minimum max min amax amin argmax argmin aminmax median mode unique unique_consecutive topk "
    "sort argsort msort searchsorted bucketize bincount histc histogram nonzero argwhere masked_select gather "
    "index_select take take_along_dim scatter repeat_interleave tile tril triu tril_indices triu_indices combinations "
    "diag diag_embed outer block_diag hann_window hamming_window blackman_window "
    "is_tensor is_floating_point is_complex numel get_default_dtype finfo iinfo device Size polar complex lerp "
    "heaviside "
    "quantile isin count_nonzero masked_fill index_add promote_types result_type"
).split()  # fmt: skip
_TORCH_ORDERED = (
    "sum mean std var prod norm dist cumsum cumprod logsumexp softmax log_softmax matmul mm bmm mv dot inner "
    "tensordot addmm baddbmm std_mean var_mean stft istft conv1d conv2d trapezoid cdist nansum nanmean cov corrcoef"
).split()  # fmt: skip
_TORCH_ALIAS = (
    "as_tensor from_numpy asarray frombuffer squeeze unsqueeze reshape ravel flatten unflatten transpose permute "
    "swapaxes movedim moveaxis t narrow select chunk split tensor_split unbind broadcast_to broadcast_tensors "
    "atleast_1d atleast_2d atleast_3d real imag view_as_real view_as_complex diagonal detach meshgrid "
    "cartesian_prod diff einsum linalg.diagonal"
).split()  # fmt: skip
_NN_NEW = "pad one_hot relu gelu silu leaky_relu elu sigmoid tanh hardtanh".split()
_NN_ORDERED = "interpolate normalize grid_sample affine_grid softmax log_softmax avg_pool1d avg_pool2d max_pool2d "
_NN_ORDERED += "adaptive_avg_pool2d conv1d conv2d unfold fold cosine_similarity layer_norm"
_NUMPY_NEW = (
    "array zeros ones full empty eye identity arange linspace logspace geomspace zeros_like ones_like full_like "
    "empty_like copy stack concatenate concat hstack vstack dstack column_stack block where roll pad clip "
    "mean std var sum prod cumsum cumprod min max amin amax argmin argmax median percentile quantile average ptp "
    "nansum nan_to_num sort argsort partition argpartition unique "
    "searchsorted digitize bincount interp ediff1d gradient cross dot vdot inner outer matmul "
    "tensordot kron trace repeat round around rint fix any all count_nonzero nonzero argwhere flatnonzero "
    "isin in1d intersect1d union1d setdiff1d allclose isclose array_equal take take_along_axis choose compress select "
    "insert delete append packbits unpackbits unravel_index ravel_multi_index tril triu tril_indices triu_indices "
    "meshgrid indices convolve correlate polyfit polyval trapezoid cov corrcoef hanning hamming blackman "
    "fromstring fromiter isscalar ndim shape size iscomplexobj isreal issubdtype result_type dtype finfo iinfo "
    "angle "
    "sinc i0 unwrap lexsort apply_along_axis timedelta64"
).split()  # fmt: skip
_NUMPY_ALIAS = (
    "asarray asanyarray ascontiguousarray asfortranarray require frombuffer reshape ravel transpose swapaxes moveaxis "
    "rollaxis squeeze expand_dims flip fliplr flipud rot90 broadcast_to broadcast_arrays atleast_1d atleast_2d "
    "atleast_3d split hsplit vsplit array_split real imag real_if_close diff diagonal "
    "diag einsum histogram tile linalg.diagonal linalg.matrix_power linalg.matrix_transpose fft.fft2 fft.fftn "
    "fft.ifft2 fft.ifftn float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_ str_ intp "
    "double single lib.stride_tricks.as_strided lib.stride_tricks.sliding_window_view"
).split()  # fmt: skip

BY_NAME: dict[Gives, list[str]] = {
    Gives.NEW: [
        *(f"torch.{name}" for name in _TORCH_NEW),
        *(f"torch.nn.functional.{name}" for name in _NN_NEW),
        *("torch.nn.utils.rnn.pad_sequence torch.no_grad torch.enable_grad torch.inference_mode".split()),
        *("torch.autograd.no_grad torch.utils.data.default_collate".split()),
        *("torch.utils.data.dataloader.default_collate torch.utils.data._utils.collate.default_collate".split()),
        *("torch.is_storage torchvision.utils._Image_fromarray".split()),
        *(f"numpy.{name}" for name in _NUMPY_NEW),
        *(f"json.{name}" for name in "loads dumps".split()),
        *(f"hashlib.{name}" for name in "md5 sha1 sha256 sha512 blake2b".split()),
        *("copy.deepcopy io.BytesIO io.StringIO os.fspath os.fsdecode os.fsencode".split()),
        *(f"PIL.Image.{name}" for name in "fromarray new merge blend composite alpha_composite frombytes".split()),
        *(f"PIL.ImageEnhance.{name}" for name in "Brightness Color Contrast Sharpness".split()),
        *(f"PIL.ImageFilter.{name}" for name in "GaussianBlur BoxBlur UnsharpMask MedianFilter Kernel".split()),
        *(f"cv2.{name}" for name in "resize cvtColor flip rotate transpose GaussianBlur medianBlur warpAffine".split()),
        *(f"cv2.{name}" for name in "warpPerspective getRotationMatrix2D copyMakeBorder normalize threshold".split()),
        *(f"cv2.{name}" for name in "imdecode Canny dilate erode equalizeHist merge split addWeighted".split()),
        *("bisect.bisect bisect.bisect_left bisect.bisect_right html.unescape html.escape".split()),
        *(f"pandas.{name}" for name in "isna notna isnull".split()),
        *(f"fractions.{name}" for name in ("Fraction",)),
        *(f"statistics.{name}" for name in "mean fmean stdev variance pstdev pvariance harmonic_mean".split()),
        *("datetime.datetime datetime.date datetime.timedelta uuid.UUID".split()),
    ],
    Gives.ORDERED: [
        *(f"torch.{name}" for name in _TORCH_ORDERED),
        *(f"torch.nn.functional.{name}" for name in _NN_ORDERED.split()),
    ],
    Gives.ALIAS: [
        *(f"torch.{name}" for name in _TORCH_ALIAS),
        *(f"numpy.{name}" for name in _NUMPY_ALIAS),
        "copy.copy",
        "torch.utils.data.default_convert",
        *(f"torch.{name}Tensor" for name in "Float Double Half Long Int Short Byte Bool".split()),
        "itertools.accumulate",
        *(f"pandas.{name}" for name in "DataFrame Series to_numeric concat merge".split()),
        *("pathlib.Path pathlib.PurePath pathlib.PosixPath pathlib.PurePosixPath".split()),
        *(f"itertools.{name}" for name in "chain chain.from_iterable islice repeat product zip_longest".split()),
        "itertools.pairwise",
        *(f"itertools.{name}" for name in "combinations permutations combinations_with_replacement".split()),
    ],
    Gives.FILE: [
        *(f"numpy.{name}" for name in "load loadtxt genfromtxt fromfile memmap".split()),
        *("torch.load PIL.Image.open json.load h5py.File gzip.open bz2.open lzma.open".split()),
        *(f"pandas.{name}" for name in "read_csv read_parquet read_json read_feather read_hdf read_excel".split()),
        *("cv2.imread imageio.imread skimage.io.imread tifffile.imread soundfile.read scipy.io.loadmat".split()),
        *("scipy.io.wavfile.read torchaudio.load torchvision.io.read_image torchvision.io.decode_image".split()),
        *("os.listdir glob.glob".split()),
        *("torchvision.datasets.folder.default_loader torchvision.datasets.folder.pil_loader".split()),
    ],
}  # fmt: skip

# Registries of libraries, which fill them at their first use: Pillow imports a format's plugin with its first image
FILLED_WHEN_USED = frozenset({("PIL.Image", "ID")})

# Of these, those in which compiled code opens the file, without an audit event of Python's
UNHEARD = frozenset(
    "h5py.File cv2.imread pandas.read_parquet pandas.read_feather pandas.read_hdf imageio.imread skimage.io.imread "
    "soundfile.read torchaudio.load torchvision.io.read_image torchvision.io.decode_image".split()
)

# Classes of callable objects whose results depend on their attributes and arguments alone.
CALLED = frozenset(
    f"torchvision.transforms.transforms.{name}"
    for name in "ToTensor PILToTensor ConvertImageDtype Normalize Resize CenterCrop Pad Grayscale FiveCrop TenCrop "
    "LinearTransformation ToPILImage".split()
) | frozenset(
    f"torchvision.transforms.v2.{name}"
    for name in "_type_conversion.ToImage _type_conversion.PILToTensor _type_conversion.ToPILImage "
    "_type_conversion.ToPureTensor _misc.Normalize _misc.ToDtype _misc.ConvertImageDtype _geometry.Resize "
    "_geometry.CenterCrop _geometry.Pad _color.Grayscale _deprecated.ToTensor".split()
)
CALL_EACH = frozenset(
    "torchvision.transforms.transforms.Compose torchvision.transforms.v2._container.Compose".split()
)  # fmt: skip

# Library datasets whose items are made from these attributes alone, and from a function in the last.
TABLES_OF_ITEMS = {
    "datasets.arrow_dataset.Dataset": (
        *("_data", "_indices", "_format_type", "_format_columns", "_output_all_columns", "_fingerprint"),
        "_format_kwargs",
    ),
}

# Why something is not on the list, if there is a better reason than "not known to be pure".
WHY = {
    "random": "draws random numbers",
    "numpy.random": "draws random numbers",
    "secrets": "draws random numbers",
    "time": "reads the clock",
    "logging": "logs",
    "warnings": "warns",
    "_warnings": "warns",
    "threading": "uses threads",
    "multiprocessing": "checks which process it runs in",
    "torch.utils.data._utils.worker": "checks which worker it runs in",
    "os": "queries the operating system",
    "posix": "queries the operating system",
    "contextvars": "reads a context variable",
    "sqlite3": "queries a database",
    "subprocess": "starts a process",
    "socket": "uses the network",
    "requests": "uses the network",
}
DRAWING = frozenset(
    "rand randn randint randperm normal bernoulli multinomial rand_like randn_like randint_like poisson dropout "
    "gumbel_softmax rrelu alpha_dropout random_split".split()
)

# Parameters that a function writes into, and flags that make it write into its first argument.
OUTPUTS = frozenset("out dst output".split())
IN_PLACE_FLAGS = frozenset(
    "inplace in_place overwrite_input overwrite_a overwrite_b overwrite_x overwrite_data".split()
)
OUT_AT = {"dot": 2, "concatenate": 2}  # for functions without a signature
METHOD_OUT_AT = {
    **dict.fromkeys("sum mean std var prod cumsum cumprod clip take compress".split(), 2),
    **dict.fromkeys("round dot max min argmax argmin any all choose ptp".split(), 1),
    "trace": 4,
    "conjugate": 0,
}
