//! What the device rewards, asked before the log was designed around the answers (`docs/formats.md`): a growing, a
//! preallocated or a zeroed file; one lane of syncs or several. `cargo bench -p warrenmq-storage --bench device`.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FallocateFlags, fallocate, fdatasync};

const FILE_BYTES: u64 = 64 << 20;
/// A lone message with its frame, a busy moment, a very busy one; and how many syncs of each.
const SIZES: [(usize, usize); 3] = [(1100, 1500), (64 << 10, 800), (1 << 20, 60)];

#[derive(Clone, Copy, Debug)]
enum Space {
    Growing,
    Allocated,
    Zeroed,
}

fn make(path: &Path, space: Space) -> File {
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path).expect("a file");
    if !matches!(space, Space::Growing) {
        fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES).expect("space");
    }
    if matches!(space, Space::Zeroed) {
        let zeros = vec![0; 1 << 20];
        (0..FILE_BYTES >> 20).for_each(|at| file.write_all_at(&zeros, at << 20).expect("space"));
    }
    file.sync_all().expect("a working disk");
    file
}

fn syncs(file: &File, size: usize, count: usize) -> Vec<Duration> {
    let bytes = vec![0x5a; size];
    let write = |at: usize| {
        let offset = (at * size) as u64 % (FILE_BYTES - size as u64);
        let began = Instant::now();
        file.write_all_at(&bytes, offset).expect("a working disk");
        fdatasync(file).expect("a working disk");
        began.elapsed()
    };
    (0..count).map(write).collect()
}

fn main() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for round in 1..=3 {
        for (size, count) in SIZES {
            for space in [Space::Growing, Space::Allocated, Space::Zeroed] {
                let mut took = syncs(&make(&dir.path().join("file"), space), size, count);
                took.sort();
                let (median, slow) = (took[count / 2], took[count * 99 / 100]);
                println!("round {round}: {size:>7} bytes, {space:?}: median {median:?}, 99 % below {slow:?}");
            }
        }
        for (size, count) in SIZES {
            for lanes in [1, 2, 4] {
                let files: Vec<File> =
                    (0..lanes).map(|lane| make(&dir.path().join(format!("lane-{lane}")), Space::Zeroed)).collect();
                let start = Barrier::new(lanes + 1);
                let took = thread::scope(|scope| {
                    for file in &files {
                        let start = &start;
                        scope.spawn(move || {
                            start.wait();
                            syncs(file, size, count / lanes)
                        });
                    }
                    start.wait();
                    Instant::now()
                })
                .elapsed();
                let rate = count as f64 / took.as_secs_f64();
                println!(
                    "round {round}: {size:>7} bytes, {lanes} lanes: {rate:.0} syncs/s, {:.0} MB/s",
                    rate * size as f64 / 1e6
                );
            }
        }
    }
}
