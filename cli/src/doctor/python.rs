// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python that `memlift tour` and `memlift bench ipc` would run, and what it can import.

use super::Check;
use crate::python;

/// What it looks for: module, distribution, what to do without it.
const MODULES: [(&str, &str, &str); 6] = [
    ("memlift", "memlift", "the package: make build, or pip install the wheel"),
    ("numpy", "numpy", "pip install numpy"),
    ("xgboost", "xgboost-cpu", "for the tour: pip install xgboost-cpu"),
    ("sklearn", "scikit-learn", "for the tour: pip install scikit-learn"),
    ("zmq", "pyzmq", "a rival: pip install pyzmq"),
    ("grpc", "grpcio", "a rival: pip install grpcio"),
];

/// Prints the interpreter's version, then a line per pair of module and distribution: empty, or what is there. Only the
/// package itself is imported: the others take seconds.
const PROGRAM: &str = "
import importlib.metadata, importlib.util, platform, sys
print(platform.python_version())
for pair in sys.argv[1:]:
    module, distribution = pair.split(':')
    try:
        if module == 'memlift':
            importlib.import_module(module)
        there = importlib.util.find_spec(module) is not None
    except Exception:
        there = False
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = 'there'
    print(version if there else '')
";

/// The interpreter and its modules.
pub fn checks() -> Vec<Check> {
    let interpreter = match python::find() {
        Ok(interpreter) => interpreter,
        Err(failure) => return vec![Check::absent("interpreter", failure.to_string())],
    };
    let pairs = MODULES.map(|(module, distribution, _)| format!("{module}:{distribution}"));
    let Ok(answer) = python::ask(&interpreter, PROGRAM, &pairs) else {
        return vec![
            Check::absent("interpreter", format!("{} does not run", interpreter.display()))
                .advise("activate a virtual environment whose Python runs, or make build"),
        ];
    };
    let mut lines = answer.lines();
    let version = lines.next().unwrap_or("unknown");
    let mut checks = vec![Check::usable("interpreter", format!("{version}, {}", interpreter.display()))];
    checks.extend(MODULES.iter().map(|(module, _, advice)| match lines.next().unwrap_or_default() {
        "" => Check::absent(module, "cannot be imported").advise(*advice),
        version => Check::usable(module, version),
    }));
    checks
}
