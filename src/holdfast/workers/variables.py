"""Which environment variables are read when modules are imported, by their names. Pure.

Python code that reads a variable while it is imported is seen doing so by the template. C libraries are not: for them,
and for what a script does before its imports, there are only lists.
"""

from __future__ import annotations

#: Variables with these beginnings are read by the interpreter, the loader or a library while modules are imported, so a
#: worker must not be forked from a template that had others.
IMPORT_PREFIXES = (
    "AOT_",
    "ATEN_",
    "BLIS_",
    "CUDNN_",
    "DNNL_",
    "GLIBC_TUNABLES",
    "GOMP_",
    "GOTO_",
    "HOME",
    "KINETO_",
    "KMP_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "MKLDNN_",
    "NPY_",
    "NUMBA_",
    "NUMEXPR_",
    "NUMPY_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PANDAS_",
    "PYTHON",
    "PYTORCH_",
    "SCIPY_",
    "TORCH",
    "TRITON_",
    "VECLIB_",
    "VIRTUAL_ENV",
)
#: These begin so too, but are read when they are used.
NOT_AT_IMPORT = ("TORCH_NCCL_", "TORCH_GLOO_", "TORCHELASTIC_", "PYTHONFAULTHANDLER")

#: Variables with these beginnings are each worker's own: the agent sets them when it starts one.
OWN_PREFIXES = (
    "CUDA_VISIBLE_DEVICES",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "HOLDFAST_",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "ROLE_",
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "WORLD_SIZE",
)
#: What a shell changes from one command to the next; no module depends on it while it is imported.
SHELL_NAMES = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})

#: Variables with these beginnings are known to be read when they are used, not when torch, numpy, scipy or pandas are
#: imported: a script may set them first and the modules can still be preloaded. Any other name may matter.
LATE_PREFIXES = (
    "ACCELERATE_",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_",
    "HF_",
    "HYDRA_",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MLFLOW_",
    "MPLBACKEND",
    "NCCL_",
    "RANK",
    "TF_CPP_MIN_LOG_LEVEL",
    "TOKENIZERS_PARALLELISM",
    "TORCH_GLOO_",
    "TORCH_NCCL_",
    "TRANSFORMERS_",
    "WANDB_",
    "WORLD_SIZE",
)

#: Variables with these beginnings are read by what torch imports at first use (its compiler, and what that needs).
LAZY_PREFIXES = (
    "AOT",
    "CC",
    "COMPILE_",
    "CUTEDSL_",
    "CUTLASS_",
    "CXX",
    "DUMP_AOTI",
    "ENABLE_",
    "FAKE_",
    "FX_",
    "INDUCTOR_",
    "KINETO_",
    "LOG_",
    "MPMATH_",
    "PARTITIONER_",
    "PT2_",
    "PYTORCH_",
    "SYMPY_",
    "TORCH",
    "TRITON_",
    "UNSAFE_",
)


def is_import_variable(name: str) -> bool:
    """Whether a variable of this name is read while modules are imported."""
    return name.startswith(IMPORT_PREFIXES) and not name.startswith(NOT_AT_IMPORT)


def is_workers_own(name: str) -> bool:
    """Whether a variable of this name may differ between workers of one program: the agent's, and the shell's."""
    return name.startswith(OWN_PREFIXES) or name in SHELL_NAMES


def is_late_variable(name: str) -> bool:
    """Whether a variable of this name is certainly not read while the modules that we preload are imported."""
    return name.startswith(LATE_PREFIXES)


def is_lazy_variable(name: str) -> bool:
    """Whether a variable of this name is read by what torch imports only at first use, and is preloaded with it."""
    return name.startswith(LAZY_PREFIXES) and not name.startswith(NOT_AT_IMPORT)


def is_cuda_variable(name: str) -> bool:
    """Whether a variable of this name has an effect only before this process has opened a GPU."""
    return name.startswith(("CUDA_", "CUBLAS_", "NVIDIA_", "PYTORCH_"))


def is_nccl_variable(name: str) -> bool:
    """Whether a variable of this name has an effect only before this process has made its first communicator."""
    return name.startswith("NCCL_") and name != "NCCL_HOSTID"  # that one is read for each communicator
