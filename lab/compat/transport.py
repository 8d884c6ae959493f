# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes a transport problem of n sources and n targets for an LP solver."""
import sys

n = int(sys.argv[1])
print("Minimize\n obj:", " + ".join(f"{(i * 37 + j * 17) % 89 + 1} x{i}_{j}" for i in range(n) for j in range(n)), "\nSubject To")
for i in range(n):
    print(f" s{i}:", " + ".join(f"x{i}_{j}" for j in range(n)), "<= 100")
for j in range(n):
    print(f" t{j}:", " + ".join(f"x{i}_{j}" for i in range(n)), f">= {j % 60 + 30}")
print("End")
