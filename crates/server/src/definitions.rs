//! Definitions that are imported when the node starts, before any client is served.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use broker::Broker;
use broker::admin::{Admin, MAX_DEFINITIONS_BYTES};

/// Imports a file, or all `*.json` files of a directory in the order of their names. Items that cannot be are logged, and the node starts without them.
///
/// # Errors
/// A file that cannot be read, or that is no definitions.
pub(crate) async fn load(broker: &Arc<Broker>, path: &Path) -> anyhow::Result<()> {
    for file in files(path).with_context(|| format!("load_definitions: cannot read {}", path.display()))? {
        let document = read(&file).with_context(|| format!("load_definitions: {}", file.display()))?;
        let imported = Admin::new(broker).import_definitions(&document).await;
        let report = imported.with_context(|| format!("load_definitions: {}", file.display()))?;
        let file = file.display();
        for problem in &report.problems {
            tracing::error!(%file, "not imported: {problem}");
        }
        for skipped in &report.skipped {
            tracing::warn!(%file, "left out: {skipped}");
        }
        tracing::info!(%file, imported = report.imported, failed = report.failed, "definitions imported");
    }
    Ok(())
}

fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut document = Vec::new();
    let limit = MAX_DEFINITIONS_BYTES as u64 + 1;
    std::fs::File::open(file)?.take(limit).read_to_end(&mut document)?;
    if document.len() > MAX_DEFINITIONS_BYTES {
        bail!("it has more than {MAX_DEFINITIONS_BYTES} bytes");
    }
    Ok(document)
}
