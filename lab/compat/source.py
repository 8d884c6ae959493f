# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes a C program with the given number of functions."""
import sys

functions = int(sys.argv[1])
print("#include <stdint.h>")
for i in range(functions):
    print(f"uint64_t f_{i}(uint64_t x, uint64_t *a) {{ for (int j = 0; j < {i % 31 + 3}; j++) {{ a[j] ^= x * {i}; x += a[(j + {i}) % 64] >> {i % 60 + 1}; if (x & {1 << i % 16}) x -= a[0]; }} return x; }}")
print(f"uint64_t (*all[{functions}])(uint64_t, uint64_t *) = {{{', '.join(f'f_{i}' for i in range(functions))}}};")
print("int main(void) { uint64_t a[64] = {0}, x = 1; for (int i = 0; i < " + str(functions) + "; i++) x = all[i](x, a); return (int)x; }")
