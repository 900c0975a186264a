"""The few things that cuda.core asks of the CUDA runtime and of NVML, answered by the driver.

The runtime library talks to the driver through tables that are not published: on the stub, all its
other functions return cudaErrorNotSupported.
"""


def patch_runtime(runtime) -> None:
    """Let `cuda.bindings.runtime` answer what `Device.sync` and `Device.pci_bus_id` ask."""
    from cuda.bindings import driver

    def result(error, *values):
        return (runtime.cudaError_t(int(error)), *values)

    def synchronize():
        return result(*driver.cuCtxSynchronize())

    def pci_bus_id(n, device):
        return result(*driver.cuDeviceGetPCIBusId(n, device))

    runtime.cudaDeviceSynchronize = synchronize
    runtime.cudaDeviceGetPCIBusId = pci_bus_id


def patch_system(system) -> None:
    """Let `cuda.core.system.get_num_devices` count as NVML does: without CUDA_VISIBLE_DEVICES."""
    from tests.nvshmem.emulation.driver import device_count

    system.get_num_devices = device_count
