# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The native part of `memlift` with replicas of pools in it. `import memlift` takes it in place of its own; there is nothing to call here."""

__version__ = "0.1.0"
