/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* chain_insert.h for lists: the same key may be there any number of times. */
#define ANY_KEY
#include "chain_insert.h"
