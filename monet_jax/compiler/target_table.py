"""The devices that programs can be compiled for, with their memory and published peaks.

The rates of GPUs and TPUs are the makers' own (dense, no sparsity), in FLOP/s and bytes/s.
`monet_jax.seconds` says which shares of them programs attain.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Target:
    """A device that a program can be compiled for.

    Attributes:
      name: "cpu", "gpu:h100", "tpu:v5e", ...
      platform: what `jax.export` calls it: "cpu", "cuda" or "tpu".
      memory_bytes: the device's memory; None for the CPU, whose memory is read at run time.
      flops_per_second: peak of float32 arithmetic outside the matrix units.
      matmul_float32_flops_per_second: peak of full-precision float32 matrix products.
      matmul_default_flops_per_second: peak of float32 inputs at JAX's default precision (TF32 on
        these GPUs, one bfloat16 pass on TPUs).
      matmul_bfloat16_flops_per_second: peak of bfloat16 (and float16) matrix products.
      bandwidth_bytes_per_second: peak of the device's memory.
      link_bytes_per_second: that it sends to other devices along one axis of a mesh.
      host_bytes_per_second: of the link to the host's pinned memory: out to the host, and back;
        None where no source names it.
      attached: True if the default device of this process is one of these.
      topology: what the ahead-of-time compiler calls the device; None where there is none.
      gpu_config: the card as XLA:GPU reads it (a `GpuTargetConfigProto` in text form), or None.
    """

    name: str
    platform: str
    memory_bytes: int | None
    flops_per_second: float
    matmul_float32_flops_per_second: float
    matmul_default_flops_per_second: float
    matmul_bfloat16_flops_per_second: float
    bandwidth_bytes_per_second: float
    link_bytes_per_second: float
    host_bytes_per_second: tuple[float, float] | None = None
    attached: bool = False
    topology: str | None = None
    gpu_config: str | None = dataclasses.field(default=None, repr=False)

    def matmul_flops_per_second(self, itemsize: int) -> float:
        """The peak of matrix products at default precision, for inputs of `itemsize` bytes."""
        if itemsize <= 2:
            return self.matmul_bfloat16_flops_per_second
        if itemsize <= 4:
            return self.matmul_default_flops_per_second
        return self.matmul_float32_flops_per_second / 2


def _gpu_config(
    *,
    name: str,
    compute_capability: str,
    cores: int,
    float32_units_per_core: int,
    memory_bytes: int,
    bandwidth: float,
    shared_memory_per_core: int,
    l2_bytes: int,
    clock_ghz: float,
) -> str:
    """A card as XLA:GPU reads it: only the fields that every supported JAX can parse."""
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  core_count: {cores}
  fpus_per_core: {float32_units_per_core}
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory_per_core}
  shared_memory_per_block_optin: {shared_memory_per_core - 1024}
  l2_cache_size: {l2_bytes}
  clock_rate_ghz: {clock_ghz}
  memory_bandwidth: {int(bandwidth)}
  device_memory_size: {memory_bytes}
  cuda_compute_capability {{ {compute_capability} }}
  device_vendor: "NVIDIA Corporation"
  name: "{name}"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""


_A100_CONFIG = _gpu_config(
    name="NVIDIA A100-SXM4-80GB",
    compute_capability="major: 8 minor: 0 feature_extension: NONE",
    cores=108,
    float32_units_per_core=64,
    memory_bytes=85_100_068_864,
    bandwidth=2.03904e12,
    shared_memory_per_core=167_936,
    l2_bytes=41_943_040,
    clock_ghz=1.41,
)
_H100_CONFIG = _gpu_config(
    name="NVIDIA H100 80GB HBM3",
    compute_capability="major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES",
    cores=132,
    float32_units_per_core=128,
    memory_bytes=84_942_979_072,
    bandwidth=3.35232e12,
    shared_memory_per_core=233_472,
    l2_bytes=52_428_800,
    clock_ghz=1.98,
)
_H200_CONFIG = _gpu_config(
    name="NVIDIA H200 141GB HBM3e",
    compute_capability="major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES",
    cores=132,
    float32_units_per_core=128,
    memory_bytes=151_397_597_184,
    bandwidth=4.8e12,
    shared_memory_per_core=233_472,
    l2_bytes=52_428_800,
    clock_ghz=1.98,
)

_TABLE = (
    # Measured on two idle cores of an AMD EPYC, JAX 0.12.0, by `seconds.rates`: products of 1024 x
    # 1024, the sum of `exp` of 64 MiB at 8 instructions an element, and a sum of two arrays of 64
    # MiB that is written over one of them. Its devices share that memory.
    Target(
        name="cpu",
        platform="cpu",
        memory_bytes=None,
        flops_per_second=4.5e10,
        matmul_float32_flops_per_second=3.7e11,
        matmul_default_flops_per_second=3.7e11,
        matmul_bfloat16_flops_per_second=9.3e11,
        bandwidth_bytes_per_second=7.3e10,
        link_bytes_per_second=7.3e10,
    ),
    # NVIDIA datasheets: A100 80GB SXM, H100 SXM, H200 SXM; memory as the driver reports it. NVLink,
    # to the other cards of a host: half of the 600 and 900 GB/s of both directions. The link of an
    # H100 or H200 to the host is PCIe 5 x16; 256 MiB between an H100 and pinned memory take as long
    # as 49.5 GB/s out and 50.6 back (docs/measurements/rates-h100.json).
    Target(
        name="gpu:a100",
        platform="cuda",
        memory_bytes=85_100_068_864,
        flops_per_second=19.5e12,
        matmul_float32_flops_per_second=19.5e12,
        matmul_default_flops_per_second=156e12,
        matmul_bfloat16_flops_per_second=312e12,
        bandwidth_bytes_per_second=2.039e12,
        link_bytes_per_second=300e9,
        topology="1x1x1",
        gpu_config=_A100_CONFIG,
    ),
    Target(
        name="gpu:h100",
        platform="cuda",
        memory_bytes=84_942_979_072,
        flops_per_second=67e12,
        matmul_float32_flops_per_second=67e12,
        matmul_default_flops_per_second=494.5e12,
        matmul_bfloat16_flops_per_second=989e12,
        bandwidth_bytes_per_second=3.35e12,
        link_bytes_per_second=450e9,
        host_bytes_per_second=(50e9, 50e9),
        topology="1x1x1",
        gpu_config=_H100_CONFIG,
    ),
    Target(
        name="gpu:h200",
        platform="cuda",
        memory_bytes=151_397_597_184,
        flops_per_second=67e12,
        matmul_float32_flops_per_second=67e12,
        matmul_default_flops_per_second=494.5e12,
        matmul_bfloat16_flops_per_second=989e12,
        bandwidth_bytes_per_second=4.8e12,
        link_bytes_per_second=450e9,
        host_bytes_per_second=(50e9, 50e9),
        topology="1x1x1",
        gpu_config=_H200_CONFIG,
    ),
    # Google Cloud's TPU pages give the bfloat16 peak and the bandwidth, of a chip; memory is what
    # libtpu says it can give a program (15.75 of 16 GiB, ...). Full float32 is six bfloat16 passes.
    # Of the 400, 1200 and 800 GB/s of all links in both directions, an axis of the mesh has a half
    # where the torus has two dimensions and a third where it has three, and sending half of that.
    # The vector unit's peak is not published: about 1/32 of the matrix unit's is taken for it.
    Target(
        name="tpu:v5e",
        platform="tpu",
        memory_bytes=int(15.75 * 2**30),
        flops_per_second=197e12 / 32,
        matmul_float32_flops_per_second=197e12 / 6,
        matmul_default_flops_per_second=197e12,
        matmul_bfloat16_flops_per_second=197e12,
        bandwidth_bytes_per_second=8.19e11,
        link_bytes_per_second=100e9,
        topology="v5e:2x2",
    ),
    Target(
        name="tpu:v5p",
        platform="tpu",
        memory_bytes=int(95.73 * 2**30),
        flops_per_second=459e12 / 32,
        matmul_float32_flops_per_second=459e12 / 6,
        matmul_default_flops_per_second=459e12,
        matmul_bfloat16_flops_per_second=459e12,
        bandwidth_bytes_per_second=2.765e12,
        link_bytes_per_second=200e9,
        topology="v5p:2x2x1",
    ),
    Target(
        name="tpu:v6e",
        platform="tpu",
        memory_bytes=int(31.24 * 2**30),
        flops_per_second=918e12 / 32,
        matmul_float32_flops_per_second=918e12 / 6,
        matmul_default_flops_per_second=918e12,
        matmul_bfloat16_flops_per_second=918e12,
        bandwidth_bytes_per_second=1.64e12,
        link_bytes_per_second=200e9,
        topology="v6e:2x2",
    ),
)
TARGETS = {target.name: target for target in _TABLE}

#: Topologies by generation of TPU and number of chips, as libtpu calls them.
_FLAT = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBIC = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8"}
TPU_TOPOLOGIES = {"v5e": _FLAT, "v5p": _CUBIC, "v6e": _FLAT}
#: GPUs that one host holds, where there are more.
GPUS_OF_A_HOST = 8

DEVICE_KINDS = (
    (r"A100.*80GB", "gpu:a100"),
    (r"H100 80GB HBM3", "gpu:h100"),
    (r"H200", "gpu:h200"),
    (r"TPU v5 ?(lite|e)", "tpu:v5e"),
    (r"TPU v5p?$", "tpu:v5p"),
    (r"TPU v6 ?(lite|e)", "tpu:v6e"),
)

# What carries a compiler's version, and what must be installed for it.
COMPILERS = {
    "cpu": ("XLA:CPU", "jaxlib"),
    "cuda": ("XLA:GPU", "jax-cuda13-plugin"),
    "tpu": ("XLA:TPU", "libtpu"),
}
COMPILER_PACKAGES = {
    "cuda": ("jax-cuda13-plugin", "jax-cuda13-pjrt"),
    "tpu": ("libtpu",),
}
