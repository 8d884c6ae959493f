# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes a formula that puts pigeons into holes, with room for all."""
import sys

pigeons, holes = map(int, sys.argv[1:])
clauses = [[i * holes + j + 1 for j in range(holes)] for i in range(pigeons)]
clauses += [[-(i * holes + j + 1), -(k * holes + j + 1)] for j in range(holes) for i in range(pigeons) for k in range(i)]
print(f"p cnf {pigeons * holes} {len(clauses)}")
for clause in clauses:
    print(*clause, 0)
