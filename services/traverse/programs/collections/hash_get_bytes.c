/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* chain_get.h for keys of up to 128 bytes. */
#define KEY_OF_BYTES
#include "chain_get.h"
