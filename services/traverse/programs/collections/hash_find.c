/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* chain_find.h for keys that are u64. */
#include "chain_find.h"
