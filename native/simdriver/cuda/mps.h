/* The client's side of MPS, and its errors. */
#pragma once

#include "driver.h"

#define CUDA_ERROR_MPS_CONNECTION_FAILED ((CUresult)805)
#define CUDA_ERROR_MPS_RPC_FAILURE ((CUresult)806)
#define CUDA_ERROR_MPS_SERVER_NOT_READY ((CUresult)807)
#define CUDA_ERROR_MPS_MAX_CLIENTS_REACHED ((CUresult)808)

CUresult mps_start(struct driver *to);
CUresult mps_look(struct driver *to); /* what every call ends with from now on */
void mps_fault(struct driver *to);    /* a kernel of this process has failed */
