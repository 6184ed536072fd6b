//! The power-failure shim (`tests/power_failure/shim.c`): compiled with `cc`, loaded in front of libc of the broker.

use crate::{Node, Setup};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// How a process ends whose power failed.
pub const POWER_FAILED: i32 = 86;

/// When power fails, and what it leaves.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// At which call, counted from 1; 0: never.
    pub after: u64,
    /// Of what is left.
    pub seed: u64,
    /// Some of what was not synced stays, torn; else none of it.
    pub some: bool,
    /// Longest duration of a sync in microseconds.
    pub delay_us: u64,
    /// Syncs are acknowledged and do nothing.
    pub lies: bool,
}

/// The path of the compiled shim; `None` where there is no C compiler, which is said loudly.
pub fn shim() -> Option<&'static Path> {
    static SHIM: OnceLock<Option<PathBuf>> = OnceLock::new();
    SHIM.get_or_init(compile).as_deref()
}

fn compile() -> Option<PathBuf> {
    if Command::new("cc").arg("--version").output().is_err() {
        skipped("no C compiler (cc) for the power-failure shim");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("power_failure/shim.c");
    // Beside the test's own binary; several of them may do this at the same time.
    let directory = std::env::current_exe().expect("a test has a path").parent().expect("in a directory").to_owned();
    let (path, unfinished) = ("warrenmq-power-failure.so", format!("warrenmq-power-failure-{}.so", std::process::id()));
    let (path, unfinished) = (directory.join(path), directory.join(unfinished));
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-pthread", "-o"])
        .args([&unfinished, &source])
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "the shim does not compile: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&unfinished, &path).expect("the shim has its place");
    Some(path)
}

/// Says that a test cannot run here; `./test` counts such lines. Past the capture of the test's output.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// The environment for a broker whose data directory is `data_dir` and whose power fails so. Files that the shim keeps are in
/// `attic`, which must be on the same file system.
pub fn environment(shim: &Path, data_dir: &Path, attic: &Path, failure: &Failure) -> Vec<(OsString, OsString)> {
    std::fs::create_dir_all(attic).expect("the attic can be made");
    let mut variables = vec![
        ("LD_PRELOAD", shim.into()),
        ("PF_DIR", data_dir.into()),
        ("PF_ATTIC", attic.into()),
        ("PF_AFTER", failure.after.to_string().into()),
        ("PF_SEED", failure.seed.to_string().into()),
        ("PF_MODE", if failure.some { "some" } else { "all" }.into()),
        ("PF_DELAY_US", failure.delay_us.to_string().into()),
    ];
    if failure.lies {
        variables.push(("PF_LIES", "1".into()));
    }
    variables.into_iter().map(|(name, value): (&str, OsString)| (name.into(), value)).collect()
}

impl Node {
    /// Starts the broker again, under the shim. False: power failed before it was ready.
    #[track_caller]
    pub fn restart_with_failure(&mut self, shim: &Path, failure: &Failure) -> bool {
        let attic = self.directory().join("attic");
        let environment = environment(shim, &self.data_dir(), &attic, failure);
        match self.restart_as(Setup { environment, ..self.setup().clone() }) {
            Ok(()) => true,
            Err(refusal) if refusal.status.code() == Some(POWER_FAILED) => false,
            Err(refusal) => panic!("the broker does not start: {refusal:?}"),
        }
    }
}
