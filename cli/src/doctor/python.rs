// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the Python interpreter that `memlift tour` and `memlift bench ipc` would run, and the modules that it can
//! import.

use super::Check;
use crate::python;

/// Modules that are checked: module, distribution, effect of its absence.
const MODULES: [(&str, &str, &str); 6] = [
    ("memlift", "memlift", "the package: make build, or pip install the wheel"),
    ("numpy", "numpy", "pip install numpy"),
    ("xgboost", "xgboost-cpu", "for the tour: pip install xgboost-cpu"),
    ("sklearn", "scikit-learn", "for the tour: pip install scikit-learn"),
    ("zmq", "pyzmq", "a rival: pip install pyzmq"),
    ("grpc", "grpcio", "a rival: pip install grpcio"),
];

/// Prints the interpreter's version, then a line for each pair of module and distribution: empty, or the version found.
/// Only the package itself is imported, because importing the others takes seconds.
const PROGRAM: &str = "
import importlib.metadata, importlib.util, platform, sys
print(platform.python_version())
sys.path.remove('')  # a folder that happens to be called memlift is not the package
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

/// Checks the interpreter and its modules.
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
    let found = format!("{version}, {}", interpreter.display());
    let mut checks = vec![if is_old(version) {
        Check::absent("interpreter", found)
            .advise("the package needs Python 3.11 or newer: make build with one")
    } else {
        Check::usable("interpreter", found)
    }];
    checks.extend(MODULES.iter().map(|(module, _, advice)| match lines.next().unwrap_or_default() {
        "" => Check::absent(module, "cannot be imported").advise(*advice),
        version => Check::usable(module, version),
    }));
    checks
}

fn is_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) < (Some(3), Some(11))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(is_old("3.9.2") && is_old("2.7") && is_old("unknown"));
        assert!(!is_old("3.11.2") && !is_old("3.14.0rc1") && !is_old("4.0.0"));
    }
}
