/* Names of the errors that this driver gives; of others the number. */
#include "stub.h"

#include <stdio.h>

#define ROW(name) {CUDA_##name, "CUDA_" #name}
static const struct { CUresult code; const char *name; } NAMES[] = {
    ROW(SUCCESS), ROW(ERROR_INVALID_VALUE), ROW(ERROR_OUT_OF_MEMORY), ROW(ERROR_NOT_INITIALIZED),
    ROW(ERROR_NO_DEVICE), ROW(ERROR_INVALID_DEVICE), ROW(ERROR_INVALID_IMAGE),
    ROW(ERROR_INVALID_CONTEXT), ROW(ERROR_NO_BINARY_FOR_GPU), ROW(ERROR_UNSUPPORTED_LIMIT),
    ROW(ERROR_INVALID_HANDLE), ROW(ERROR_ILLEGAL_STATE), ROW(ERROR_NOT_FOUND), ROW(ERROR_NOT_READY),
    ROW(ERROR_ILLEGAL_ADDRESS), ROW(ERROR_LAUNCH_OUT_OF_RESOURCES),
    ROW(ERROR_PEER_ACCESS_ALREADY_ENABLED), ROW(ERROR_PEER_ACCESS_NOT_ENABLED),
    ROW(ERROR_CONTEXT_IS_DESTROYED), ROW(ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    ROW(ERROR_HOST_MEMORY_NOT_REGISTERED), ROW(ERROR_LAUNCH_FAILED),
    ROW(ERROR_LAUNCH_TIMEOUT), ROW(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE), ROW(ERROR_NOT_SUPPORTED),
    ROW(ERROR_STREAM_CAPTURE_UNSUPPORTED), ROW(ERROR_STREAM_CAPTURE_INVALIDATED),
    ROW(ERROR_STREAM_CAPTURE_MERGE), ROW(ERROR_STREAM_CAPTURE_UNMATCHED),
    ROW(ERROR_STREAM_CAPTURE_UNJOINED), ROW(ERROR_STREAM_CAPTURE_ISOLATION),
    ROW(ERROR_STREAM_CAPTURE_IMPLICIT), ROW(ERROR_CAPTURED_EVENT),
};

CUresult CUDAAPI cuGetErrorName(CUresult code, const char **name)
{
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (NAMES[i].code == code) {
            *name = NAMES[i].name;
            return CUDA_SUCCESS;
        }
    static __thread char text[32];
    snprintf(text, sizeof text, "CUresult %d", code);
    *name = text;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult code, const char **text)
{
    if (code == CUDA_ERROR_LAUNCH_TIMEOUT) {
        *text = last_wait();
        return CUDA_SUCCESS;
    }
    return cuGetErrorName(code, text);
}
