// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python that `memlift tour` and `memlift bench ipc` would run, and what it can import.

use std::path::Path;

use super::Check;
use crate::python;

/// What it looks for: the package itself, what it needs, and the rivals.
const MODULES: [(&str, &str); 6] = [
    ("memlift", "the package: make build, or pip install the wheel"),
    ("numpy", "pip install numpy"),
    ("xgboost", "for the tour: pip install xgboost-cpu"),
    ("sklearn", "for the tour: pip install scikit-learn"),
    ("zmq", "a rival: pip install pyzmq"),
    ("grpc", "a rival: pip install grpcio"),
];

/// The interpreter and its modules.
pub fn checks() -> Vec<Check> {
    let interpreter = match python::find(None) {
        Ok(interpreter) => interpreter,
        Err(failure) => return vec![Check::absent("interpreter", failure.to_string())],
    };
    let version = python::ask(&interpreter, "import sys; print('.'.join(map(str, sys.version_info[:3])))");
    let Ok(version) = version else {
        return vec![
            Check::absent("interpreter", format!("{} does not run", interpreter.display()))
                .advise("name one: MEMLIFT_PYTHON=/path/to/python3"),
        ];
    };
    let mut checks = vec![Check::usable("interpreter", format!("{version}, {}", interpreter.display()))];
    checks.extend(MODULES.iter().map(|(module, advice)| module_check(&interpreter, module, advice)));
    checks
}

fn module_check(interpreter: &Path, module: &str, advice: &str) -> Check {
    let program = format!("import {module}; print(getattr({module}, '__version__', 'there'))");
    match python::ask(interpreter, &program) {
        Ok(version) => Check::usable(module, version),
        Err(_) => Check::absent(module, "cannot be imported").advise(advice),
    }
}
