/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* chain_insert.h for keys of up to 128 bytes. */
#define KEY_OF_BYTES
#include "chain_insert.h"
