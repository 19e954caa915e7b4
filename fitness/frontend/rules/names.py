"""Lists the rules, and the names that a candidate may use.

The tables are allow-lists: a name in none of them is refused.  So a new release of torch or Triton cannot open a hole
by adding a function.  The names are those of torch 2.11 to 2.13 and Triton 3.6 to 3.8.
"""

from __future__ import annotations

RULES: dict[str, str] = {
    "syntax": "the source must be Python",
    "encoding": "UTF-8 without characters that make a file read differently from what it runs",
    "size": "at most 200,000 characters, and no deeper nesting than a kernel needs",
    "import": "imports at the top level, of torch, triton and a few pure modules only",
    "top-level": "the top level holds imports, constants, kernels, functions and plain records only",
    "definition": "kernels are top-level @triton.jit functions; names are defined once; no generators or classes",
    "decorator": "host functions carry torch.no_grad, torch.inference_mode or a cache of plain numbers at most",
    "entry": "the entry is a top-level host function",
    "no-kernel": "the source needs a top-level @triton.jit function",
    "no-launch": "the entry must launch a kernel of the source, itself or through its helpers",
    "launch": "a kernel is used as kernel[grid](...) with plain launch options; its attributes are not touched",
    "autotune": "autotune takes configurations; hooks and benchmark functions are the evaluator's",
    "patch": "modules, functions and objects are not changed, and modules are not passed around",
    "state": "no call may depend on an earlier one: no globals that are written, no caches of tensors, no counters",
    "builtin": "only harmless builtins: no eval, exec, open, getattr, globals, type, id, exit",
    "dunder": "no names that begin with an underscore pair, and no private attributes",
    "frame": "no stack frames, code objects or tracebacks",
    "memory": "no raw memory: data_ptr, storage, set_, resize_, .data",
    "attribute": "only attributes that host plumbing needs",
    "library": "of torch and triton only allocation, views, metadata, device properties and the kernel language",
    "delegate": "computing is done by the candidate's kernels, not by torch operators on the host",
    "try": "no try around host code that the entry reaches: a failed kernel must fail",
    "kernel": "kernels use their parameters, triton.language, constants, other kernels and a few builtins",
    "inline-asm": "no inline assembly, external code or overridden intermediate code",
}


def words(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


# --- modules ---------------------------------------------------------------------------------------------------------

# Modules that may be imported.  Everything reached through them is looked up as (module, name) in `leaf_rule`.
MODULES = words("""
    __future__ math typing functools dataclasses collections collections.abc itertools enum operator torch torch.cuda
    torch.nn torch.nn.functional torch.special torch.linalg torch.fft triton triton.language triton.language.math
    triton.language.extra triton.language.extra.libdevice triton.language.extra.cuda
    triton.language.extra.cuda.libdevice triton.runtime triton.runtime.driver triton.runtime.driver.active
    triton.runtime.driver.active.utils
""")

KERNEL_LANGUAGE = words("""
    triton.language triton.language.math triton.language.extra.libdevice triton.language.extra.cuda.libdevice
""")

# Names that these modules leak (their own imports), next to the functions they offer.
_LEAKS = words(
    "core standard semantic random target_info extra wraps List T str_to_ty sys os inspect builtins warnings"
)

_INLINE = words("inline_asm_elementwise extern_elementwise globaltimer smid num_threads num_warps dispatch")

_MODULE_NAMES: dict[str, frozenset[str]] = {
    "__future__": words("annotations"),
    "typing": words("""
        Any Optional Union Tuple List Dict Set Callable Sequence Iterable Mapping NamedTuple Literal Final TypeAlias
        TypeVar Type Hashable cast TYPE_CHECKING Annotated ClassVar Iterator Generator Collection NoReturn Protocol
    """),
    "functools": words("partial reduce lru_cache cache"),
    "dataclasses": words("dataclass field replace asdict astuple"),
    "collections": words("OrderedDict abc"),
    "collections.abc": words("Callable Iterable Iterator Mapping Sequence Hashable Sized Collection"),
    "itertools": words("product chain permutations combinations accumulate pairwise zip_longest islice starmap"),
    "enum": words("Enum IntEnum StrEnum auto"),
    "operator": words("mul add"),  # reduce(mul, shape); on tensors the recorder counts them as delegated
    "triton": words("jit autotune heuristics Config cdiv next_power_of_2"),
    "triton.runtime": words(""),
    "triton.runtime.driver": words(""),
    "triton.runtime.driver.active": words("get_current_target get_current_device get_active_torch_device"),
    "triton.runtime.driver.active.utils": words("get_device_properties"),
    "torch.cuda": words("""
        get_device_properties get_device_capability get_device_name current_device device device_count device_of
        is_available synchronize
    """),
    "torch.nn": words(""),
    "triton.language.extra": words(""),
    "triton.language.extra.cuda": words(""),
}

# --- torch -----------------------------------------------------------------------------------------------------------

TORCH_DTYPES = words("""
    bfloat16 bool double float float16 float32 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz half
    int int16 int32 int64 int8 long short uint16 uint32 uint64 uint8 complex64
""")

# Functions that make tensors without computing: allocation, constants, copies and views.
TORCH_TENSORS = words("""
    empty empty_like empty_strided zeros zeros_like ones ones_like full full_like tensor as_tensor arange scalar_tensor
    reshape transpose permute squeeze unsqueeze flatten unflatten movedim moveaxis narrow select t swapaxes swapdims
    ravel clone detach as_strided broadcast_to view_as_real atleast_1d atleast_2d atleast_3d diagonal
""")

TORCH_METADATA = (
    words("""
    Tensor Size device dtype finfo iinfo is_tensor is_floating_point numel promote_types result_type get_default_dtype
    broadcast_shapes chunk split unbind tensor_split broadcast_tensors no_grad inference_mode strided contiguous_format
    channels_last preserve_format memory_format inf nan pi e
""")
    | TORCH_DTYPES
)

# torch functions (and tensor methods, also with a trailing underscore) that compute or move data on the device.
TORCH_COMPUTE = words("""
    abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all allclose amax amin aminmax angle any argmax
    argmin argsort argwhere asin asinh atan atan2 atanh baddbmm bernoulli bincount bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm block_diag bucketize cat cartesian_prod cdist ceil celu
    chain_matmul cholesky clamp clamp_max clamp_min clip column_stack combinations concat concatenate conj copysign
    corrcoef cos cosh count_nonzero cov cross cummax cummin cumprod cumsum deg2rad det diag diag_embed diagflat diff
    digamma dist div divide dot dstack einsum eig elu eq equal erf erfc erfinv exp exp2 expm1 exponential eye
    fill_diagonal fix flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac gather gcd ge gelu ger
    greater greater_equal group_norm gt hardshrink heaviside histc histogram hstack hypot i0 index_add index_copy
    index_fill index_put index_reduce index_select inner inverse isclose isfinite isin isinf isnan kron kthvalue
    layer_norm ldexp le lerp less less_equal lgamma linspace log log10 log1p log2 log_softmax logaddexp logaddexp2
    logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logspace logsumexp lt lu masked_fill
    masked_scatter masked_select matmul matrix_exp matrix_power max maximum mean median meshgrid min minimum mm mode
    msort mul multinomial multiply multi_dot mv nan_to_num nanmean nanmedian nansum native_layer_norm native_norm ne neg
    negative nextafter nonzero norm normal not_equal outer pinverse poisson polar polygamma positive pow prelu prod put
    qr quantile rand rand_like randint randint_like randn randn_like randperm random range reciprocal relu remainder
    renorm repeat repeat_interleave rms_norm roll rot90 round rsqrt rsub rrelu scatter scatter_add scatter_reduce
    searchsorted selu sgn sigmoid sign signbit sin sinc sinh slice_scatter slogdet softmax sort sqrt square stack std
    std_mean sub subtract sum svd take take_along_dim tan tanh tensordot threshold tile topk trace trapezoid
    triangular_solve tril triu true_divide trunc uniform unique unique_consecutive vander var var_mean vdot vstack where
    xlogy _softmax
""")

_TORCH_MODULES = words("torch.random")  # named like the method that computes

# Modules of torch whose functions compute.  They also hold what they import, which leads anywhere.
_COMPUTE_MODULES: dict[str, frozenset[str]] = {
    "torch.nn.functional": words("""
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices adaptive_max_pool3d
        adaptive_max_pool3d_with_indices affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm
        bilinear binary_cross_entropy binary_cross_entropy_with_logits celu celu_ channel_shuffle conv1d conv2d
        conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity
        cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu elu_ embedding embedding_bag
        feature_alpha_dropout fold fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d
        fractional_max_pool3d_with_indices gaussian_nll_loss gelu glu grid_sample group_norm grouped_mm
        gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hardtanh_ hinge_embedding_loss huber_loss
        instance_norm interpolate kl_div l1_loss layer_norm leaky_relu leaky_relu_ linear linear_cross_entropy
        local_response_norm log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d
        max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool1d
        max_unpool2d max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss
        multilabel_margin_loss multilabel_soft_margin_loss native_channel_shuffle nll_loss normalize one_hot pad
        pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6 relu_ rms_norm rrelu
        rrelu_ scaled_dot_product_attention scaled_grouped_mm scaled_mm selu selu_ sigmoid silu smooth_l1_loss
        soft_margin_loss softmax softmin softplus softshrink softsign tanh tanhshrink threshold threshold_
        triplet_margin_loss triplet_margin_with_distance_loss unfold upsample upsample_bilinear upsample_nearest
    """),
    "torch.special": words("""
        airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u
        chebyshev_polynomial_v chebyshev_polynomial_w digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc
        gammaincc gammaln hermite_polynomial_h hermite_polynomial_he i0 i0e i1 i1e laguerre_polynomial_l
        legendre_polynomial_p log1p log_ndtr log_softmax logit logsumexp modified_bessel_i0 modified_bessel_i1
        modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri polygamma psi round scaled_modified_bessel_k0
        scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u
        shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w sinc softmax spherical_bessel_j0 xlog1py xlogy
        zeta
    """),
    "torch.linalg": words("""
        cholesky cholesky_ex cond cross det diagonal eig eigh eigvals eigvalsh householder_product inv inv_ex
        ldl_factor ldl_factor_ex ldl_solve lstsq lu lu_factor lu_factor_ex lu_solve matmul matrix_exp matrix_norm
        matrix_power matrix_rank multi_dot norm pinv qr slogdet solve solve_ex solve_triangular svd svdvals
        tensorinv tensorsolve vander vecdot vector_norm
    """),
    "torch.fft": words("""
        fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft irfft2
        irfftn rfft rfft2 rfftfreq rfftn
    """),
}

# --- attributes of values --------------------------------------------------------------------------------------------

# Tensor methods and attributes that give a tensor on the same or copied data.
TENSOR_VIEWS = words("""
    view reshape contiguous to transpose t T mT permute unsqueeze squeeze expand expand_as flatten unflatten narrow
    select view_as reshape_as movedim moveaxis swapaxes swapdims diagonal as_strided unfold detach clone copy_ zero_
    fill_ ravel new_empty new_zeros new_ones new_full new_tensor new_empty_strided broadcast_to type_as half float
    double bfloat16 int long short bool cuda cpu requires_grad_ squeeze_ unsqueeze_ transpose_ t_
""")
TENSOR_VIEW_LISTS = words("chunk split tensor_split unbind")

# Tensor methods and attributes that describe a tensor.  item and tolist need values that the recorder does not have: it
# answers with the verdict "unsupported", which says more than a rule could.
TENSOR_METADATA = words("""
    shape dtype device ndim stride size numel nelement dim ndimension element_size is_contiguous is_cuda is_cpu
    requires_grad itemsize nbytes storage_offset is_floating_point is_complex is_signed get_device layout is_sparse
    is_same_size item tolist type
""")

# Other attributes that host code reads: of devices, dtypes, device properties, configurations, containers, numbers and
# text.
OTHER_ATTRIBUTES = words("""
    type index itemsize is_floating_point is_complex is_signed max min eps tiny smallest_normal bits resolution
    multi_processor_count major minor name total_memory warp_size shared_memory_per_block shared_memory_per_block_optin
    shared_memory_per_multiprocessor regs_per_multiprocessor max_threads_per_multi_processor L2_cache_size arch backend
    kwargs num_warps num_stages num_ctas maxnreg all_kwargs value numel append extend insert pop remove clear sort
    reverse index count copy items keys values get update setdefault add discard union intersection difference issubset
    split join strip startswith endswith lower upper replace bit_length bit_count is_integer as_integer_ratio
    _replace _asdict
""")

FRAME_ATTRIBUTES = words("""
    tb_frame tb_next tb_lasti f_back f_builtins f_code f_globals f_locals f_trace gi_frame gi_code gi_yieldfrom cr_frame
    cr_code cr_origin ag_frame ag_code co_code co_consts co_names func_globals func_code with_traceback mro
""")

MEMORY_ATTRIBUTES = words("""
    data data_ptr const_data_ptr storage untyped_storage typed_storage set_ resize_ resize_as_ numpy share_memory_
    is_pinned pin_memory record_stream
""")

# --- builtins --------------------------------------------------------------------------------------------------------

HOST_BUILTINS = words("""
    abs all any bool dict divmod enumerate filter float frozenset int isinstance len list map max min next pow print
    range reversed round set slice sorted str sum tuple zip iter Ellipsis NotImplemented Exception ValueError TypeError
    RuntimeError NotImplementedError AssertionError IndexError KeyError ArithmeticError ZeroDivisionError OverflowError
""")

KERNEL_BUILTINS = words("range min max abs int float bool len tuple slice sum")

# --- launches --------------------------------------------------------------------------------------------------------

# Compiler options that add code which the gate has not read, or change what the numbers of a build mean.
CODE_OPTIONS = words("extern_libs ir_override ptx_options backend_name instrumentation_mode")
HOOKS = words("pre_hook post_hook do_bench")
JIT_OPTIONS = words("do_not_specialize do_not_specialize_on_alignment debug noinline version")

# Attributes that kernels may use: of tl.tensor, dtypes, tensor descriptors, constexpr, tuples.
KERNEL_ATTRIBUTES = words("""
    T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or
    atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum erf exp exp2 expand_dims flip floor gather
    histogram item log log2 logical_and logical_or max min permute ravel reduce reduce_or reshape rsqrt sigmoid sin
    softmax sort split sqrt sqrt_rn store sum to trans view xor_sum dtype shape numel type element_ty scalar
    primitive_bitwidth itemsize fp_mantissa_width int_bitwidth is_block is_bool is_const is_dtype is_floating is_bf16
    is_fp16 is_fp32 is_fp64 is_fp8 is_fp8e4b15 is_fp8e4b8 is_fp8e4nv is_fp8e5 is_fp8e5b16 is_int is_int1 is_int16
    is_int32 is_int64 is_int8 is_int_signed is_int_unsigned is_ptr is_standard_floating is_uint16 is_uint32 is_uint64
    is_uint8 is_void value block_shape block_type load scatter
""")


def is_private(name: str) -> bool:
    """Whether the name begins with an underscore."""
    return name.startswith("_")


def refused_rule(path: str) -> str | None:
    """The rule that a chain of names from an import, such as `os.path.join`, breaks in every task; None if it may pass.

    The first name in the chain that is not in MODULES decides.  If it may be used, the rest are attributes of a value.
    """
    end = -1
    while (end := path.find(".", end + 1)) >= 0 and path[:end] in MODULES:
        pass
    rule = leaf_rule(path if end < 0 else path[:end])
    return None if path in MODULES or rule == "delegate" else rule


def leaf_rule(path: str) -> str | None:
    """The rule that a use of `path` (a name in one of MODULES) breaks; None if it is allowed.

    The caller decides whether "delegate" is refused: it depends on the task and on whether the entry reaches the use.
    """
    module, _, name = path.rpartition(".")
    if path in _TORCH_MODULES:
        return "library"
    if module == "torch" and name in TORCH_COMPUTE:
        return "delegate"
    if is_private(name):
        return "dunder"
    if name in _INLINE and module.startswith("triton"):
        return "inline-asm"
    if module == "math":
        return None
    if module == "torch":
        return None if name in TORCH_TENSORS | TORCH_METADATA else "library"
    if module in _COMPUTE_MODULES:
        return "delegate" if name in _COMPUTE_MODULES[module] else "library"
    if module in KERNEL_LANGUAGE:
        return "library" if name in _LEAKS else None
    if module not in _MODULE_NAMES:
        return "import"
    if name in _MODULE_NAMES[module]:
        return None
    return "library" if module.startswith(("torch", "triton")) else "import"
