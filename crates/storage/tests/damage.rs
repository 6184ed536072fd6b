//! Damaged files of every kind. Each must end in one of three ways: everything is there; the unproven last frame is cut
//! off and its bytes are counted; or the store refuses to open and names the file and the offset.

mod common;

use std::{
    fs,
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use common::{Events, Model, append, small_options, submission};
use warrenmq_storage::{
    Damage, DiskFs, FileNumber, FileSystem, GroupId, Index, Interval, LogOptions, Operation, QueueKey, SimFs,
    StorageError, Store, StoreOptions, StoreRecovered, Survivor, Term, Writer, log::frame::FrameHeader,
};

const GROUP: GroupId = GroupId(1);

/// A data directory taken apart.
#[derive(Clone)]
struct Files(Vec<(PathBuf, Vec<u8>)>);

fn options() -> StoreOptions {
    StoreOptions { log: small_options(), ..StoreOptions::default() }
}

fn open(fs: Arc<dyn FileSystem>, dir: &Path) -> Result<(Store, Writer, StoreRecovered), StorageError> {
    Store::open(fs, dir, options(), Events::new())
}

/// A store with two full log files and a begun one, a segment, and two snapshots; `idle`: the writer had time to prove its
/// last frame.
fn make(idle: bool) -> (Files, Model) {
    let dir = tempfile::tempdir().unwrap();
    let events = Events::new();
    let (store, mut writer, _) = Store::open(Arc::new(DiskFs), dir.path(), options(), events.clone()).unwrap();
    let mut survivors = Vec::new();
    let mut model = Model::default();
    for index in 1..=50u64 {
        let payload = Bytes::from(vec![index as u8; 100 + (index as usize * 37) % 2500]);
        let operations = vec![append(index, 1, payload), Operation::HardState(index.to_le_bytes().to_vec().into())];
        operations.iter().for_each(|operation| model.apply(operation));
        store.log.submit(submission(GROUP.0, index, operations));
        writer.turn();
    }
    for event in events.take() {
        let common::Event::Written { placed, .. } = event else { panic!("{event:?}") };
        let all = placed.into_iter().map(|(index, location)| Survivor {
            queue: QueueKey(index.0 % 3),
            sequence: index.0,
            location,
            head: None,
            starts_run: false,
        });
        survivors.extend(all);
    }
    store.segments.copy_out(&store.log, GROUP, survivors).unwrap();
    store.snapshots.store("meta", &[Bytes::from_static(b"older state")]).unwrap();
    store.snapshots.store("meta", &[Bytes::from_static(b"newer state")]).unwrap();
    if idle {
        writer.idle();
    }
    assert_eq!(store.log.usage().files, 3);
    drop((store, writer));
    (Files::read(dir.path()), model)
}

impl Files {
    fn read(dir: &Path) -> Files {
        let mut files = Vec::new();
        for inner in ["", "log", "segments", "snapshots"] {
            for entry in fs::read_dir(dir.join(inner)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    let bytes = fs::read(&path).unwrap();
                    files.push((path.strip_prefix(dir).unwrap().to_path_buf(), bytes));
                }
            }
        }
        files.sort();
        Files(files)
    }

    fn write_to(&self, fs: &dyn FileSystem, dir: &Path) {
        for (path, bytes) in &self.0 {
            fs.create_dir(dir.join(path).parent().unwrap()).unwrap();
            let file = fs.create(&dir.join(path)).unwrap();
            file.write_at(&[IoSlice::new(bytes)], 0).unwrap();
        }
    }

    fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Files {
        let mut files = self.clone();
        change(&mut files.0.iter_mut().find(|(known, _)| known == path).unwrap().1);
        files
    }

    fn without(&self, path: &Path) -> Files {
        Files(self.0.iter().filter(|(known, _)| known != path).cloned().collect())
    }

    fn get(&self, path: &Path) -> &[u8] {
        &self.0.iter().find(|(known, _)| known == path).unwrap().1
    }

    fn in_dir(&self, dir: &str, extension: &str) -> Vec<PathBuf> {
        let inside = self.0.iter().filter(|(path, _)| {
            path.parent() == Some(Path::new(dir)) && path.extension().is_some_and(|found| found == extension)
        });
        inside.map(|(path, _)| path.clone()).collect()
    }

    fn logs(&self) -> Vec<PathBuf> {
        self.in_dir("log", "log")
    }

    /// Opens a copy on a real disk.
    fn open_on_disk(&self) -> (tempfile::TempDir, Result<(Store, Writer, StoreRecovered), StorageError>) {
        let dir = tempfile::tempdir().unwrap();
        self.write_to(&DiskFs, dir.path());
        let opened = open(Arc::new(DiskFs), dir.path());
        (dir, opened)
    }

    /// Opens a copy in memory, for cases by the thousand.
    fn open_in_memory(&self) -> Result<(Store, Writer, StoreRecovered), StorageError> {
        let fs = SimFs::new(1);
        self.write_to(&fs, Path::new("data"));
        open(Arc::new(fs), Path::new("data"))
    }
}

/// The frames of a log file: offset and length.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = 4096;
    while let Ok(header) = FrameHeader::decode(&bytes[at..]) {
        frames.push((at, header.frame_length() as usize));
        at += header.frame_length() as usize;
    }
    frames
}

fn damage(error: StorageError) -> Damage {
    let StorageError::Damaged(damage) = error else { panic!("{error}") };
    Damage::clone(&damage)
}

/// All of the model, or all but the last entries.
fn assert_prefix(found: &Model, model: &Model, missing: usize) {
    assert_eq!(found.entries.len() + missing, model.entries.len());
    assert!(found.entries.iter().eq(model.entries.iter().take(found.entries.len())));
}

fn check_flip(
    files: &Files,
    model: &Model,
    path: &Path,
    at: usize,
    opened: Result<(Store, Writer, StoreRecovered), StorageError>,
) {
    let bytes = files.get(path);
    let newest = files.logs().last().unwrap() == path;
    let inside = frames(bytes);
    let frame = inside.iter().find(|(start, length)| (*start..start + length).contains(&at));
    match opened {
        Err(error) => {
            let damage = damage(error);
            assert!(damage.file.ends_with(path), "byte {at} of {path:?}: {damage}");
            let expected = if at < 4096 { 0 } else { frame.unwrap().0 };
            assert_eq!(damage.offset, expected as u64, "byte {at} of {path:?}: {damage}");
        }
        Ok((store, _, recovered)) => {
            let found = Model::read(&store.log, GROUP).unwrap();
            match recovered.log.torn {
                None => assert!(found == *model, "byte {at} of {path:?}: loss without a word"),
                Some(torn) => {
                    assert!(newest, "only the newest file can have a torn tail");
                    // What the last turn wrote, perhaps in two frames, is proven by nothing.
                    let synced = inside.iter().map(|&(start, _)| FrameHeader::decode(&bytes[start..]).unwrap().synced);
                    let end = inside.last().map(|(start, length)| start + length).unwrap();
                    let expected = frame.map_or(end, |(start, _)| *start);
                    assert_eq!(torn.offset, expected as u64, "byte {at} of {path:?}");
                    assert!(expected >= synced.max().unwrap() as usize, "byte {at} of {path:?}: this was proven");
                    if at < end {
                        let dropped = end - expected;
                        assert!(
                            (dropped.saturating_sub(40)..=dropped).contains(&(torn.dropped_bytes as usize)),
                            "{torn}"
                        );
                    }
                    assert_prefix(&found, model, usize::from(found != *model));
                }
            }
        }
    }
}

#[test]
fn every_flipped_bit_in_the_log_is_found_and_named_or_harmless() {
    for idle in [false, true] {
        let (files, model) = make(idle);
        for path in files.logs() {
            let length = files.get(&path).len();
            for at in (0..length).step_by(41) {
                let changed = files.change(&path, |bytes| bytes[at] ^= 1 << (at % 8));
                check_flip(&files, &model, &path, at, changed.open_in_memory());
            }
            for at in (0..length).step_by(2003) {
                let changed = files.change(&path, |bytes| bytes[at] ^= 0x80);
                let (_dir, opened) = changed.open_on_disk();
                check_flip(&files, &model, &path, at, opened);
            }
        }
    }
}

#[test]
fn an_idle_moment_makes_damage_to_the_last_frame_known() {
    let newest = |files: &Files| files.logs().last().unwrap().clone();
    let last_entry = |files: &Files, nth: usize| *frames(files.get(&newest(files))).iter().rev().nth(nth).unwrap();
    let (files, model) = make(false);
    let (start, length) = last_entry(&files, 0);
    let (_dir, opened) = files.change(&newest(&files), |bytes| bytes[start + length / 2] ^= 1).open_on_disk();
    let (store, _, recovered) = opened.unwrap();
    assert_eq!(recovered.log.torn.unwrap().offset, start as u64, "nothing proves that the last frame was synced");
    assert_prefix(&Model::read(&store.log, GROUP).unwrap(), &model, 1);

    let (files, _) = make(true);
    let (start, length) = last_entry(&files, 1);
    let (_dir, opened) = files.change(&newest(&files), |bytes| bytes[start + length / 2] ^= 1).open_on_disk();
    assert_eq!(damage(opened.err().unwrap()).offset, start as u64);
}

#[test]
fn zeroed_sectors_are_found_and_named_or_harmless() {
    let (files, model) = make(true);
    for path in files.logs() {
        for sector in 0..files.get(&path).len() / 512 {
            let changed = files.change(&path, |bytes| bytes[sector * 512..][..512].fill(0));
            if changed.get(&path) == files.get(&path) {
                continue;
            }
            match changed.open_in_memory() {
                Ok((store, _, recovered)) => {
                    // What may go unnoticed is the seal of a file. The empty frame at the end can prove nothing when it is
                    // in the same sector as the end of the frame before it.
                    let (proof, _) = *frames(files.get(&path)).last().unwrap();
                    let torn = sector == proof / 512 && recovered.log.torn.is_some();
                    let found = Model::read(&store.log, GROUP).unwrap();
                    assert!(found == model || torn, "sector {sector} of {path:?}: {recovered:?}");
                    assert_prefix(&found, &model, usize::from(found != model));
                }
                Err(error) => assert!(damage(error).file.ends_with(&path), "sector {sector} of {path:?}"),
            }
        }
    }
}

#[test]
fn a_cut_newest_file_keeps_every_whole_frame_and_counts_the_rest() {
    let (files, model) = make(false);
    let newest = files.logs().last().unwrap().clone();
    let bytes = files.get(&newest);
    let inside = frames(bytes);
    let end = inside.last().map(|(start, length)| start + length).unwrap();
    let cuts = [1, 7, 4096].map(|cut| bytes.len() - cut);
    for size in cuts.into_iter().chain((4096..=end).rev().step_by(119)) {
        let (_dir, opened) = files.change(&newest, |bytes| bytes.truncate(size)).open_on_disk();
        let (store, mut writer, recovered) = opened.unwrap();
        let whole = inside.iter().take_while(|(start, length)| start + length <= size).count();
        let missing = (inside.len() - whole).min(model.entries.len());
        let torn_at = inside.get(whole).map_or(end, |(start, _)| *start);
        match recovered.log.torn {
            Some(torn) => {
                assert_eq!(torn.offset, torn_at as u64, "cut to {size}");
                let dropped = (size - torn_at) as u64;
                // Zeros at its end do not count: that is how an unwritten rest looks.
                assert!((dropped.saturating_sub(40)..=dropped).contains(&torn.dropped_bytes), "cut to {size}: {torn}");
            }
            None => assert!(size <= torn_at || size >= end, "cut to {size}"),
        }
        let found = Model::read(&store.log, GROUP).unwrap();
        assert!(found.entries.iter().eq(model.entries.iter().take(found.entries.len())));
        assert!(found.entries.len() + missing >= model.entries.len(), "cut to {size}");
        // And the log goes on from there.
        let next = found.last().next().0;
        store.log.submit(submission(GROUP.0, 1, vec![append(next, 2, vec![9; 500])]));
        writer.turn();
        assert_eq!(store.log.status(GROUP).unwrap().last, Index(next));
    }
}

#[test]
fn a_cut_or_missing_older_file_is_damage() {
    let (files, _) = make(false);
    let logs = files.logs();
    for path in &logs[..logs.len() - 1] {
        let (start, length) = *frames(files.get(path)).iter().rev().nth(1).unwrap();
        let (_dir, opened) = files.change(path, |bytes| bytes.truncate(start + length - 1)).open_on_disk();
        let found = damage(opened.err().unwrap());
        assert!(found.file.ends_with(path) && found.offset == start as u64, "{found}");
        let (_dir, opened) = files.without(path).open_on_disk();
        assert!(damage(opened.err().unwrap()).file.ends_with(path));
    }
    let newest = logs.last().unwrap();
    let (_dir, opened) = files.without(newest).open_on_disk();
    let found = damage(opened.err().unwrap());
    assert!(found.file.ends_with(newest), "the file before says that it existed: {found}");
}

#[test]
fn garbage_behind_any_file_is_ignored() {
    let (files, model) = make(false);
    let paths: Vec<PathBuf> =
        files.0.iter().map(|(path, _)| path.clone()).filter(|path| !path.ends_with("lock")).collect();
    for path in paths {
        for random in [false, true] {
            let garbage = (0..4096u32).map(|at| if random { (at.wrapping_mul(2_654_435_761) >> 13) as u8 } else { 0 });
            let (_dir, opened) = files.change(&path, |bytes| bytes.extend(garbage)).open_on_disk();
            let (store, _, _) = opened.unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert!(Model::read(&store.log, GROUP).unwrap() == model, "behind {path:?}");
            assert_eq!(store.snapshots.load("meta").unwrap().unwrap().contents, "newer state");
            assert_segments(&store, &model);
        }
    }
}

fn assert_segments(store: &Store, model: &Model) {
    let mut count = 0;
    for queue in 0..3 {
        for message in store.segments.read_queue(GROUP, QueueKey(queue), 0, u64::MAX).unwrap() {
            assert_eq!(message.body, model.entries[message.sequence as usize - 1].payload);
            count += 1;
        }
    }
    assert_eq!(count, model.entries.len());
}

#[test]
fn a_segment_cut_in_its_index_is_whole_and_one_cut_in_its_messages_is_damaged() {
    let (files, model) = make(false);
    let path = files.in_dir("segments", "segment").pop().unwrap();
    for cut in [1, 7] {
        let (_dir, opened) = files.change(&path, |bytes| bytes.truncate(bytes.len() - cut)).open_on_disk();
        let (store, _, recovered) = opened.unwrap();
        assert_eq!(recovered.segments.rebuilt.len(), 1);
        assert_segments(&store, &model);
    }
    let changed = files.change(&path, |bytes| bytes.truncate(bytes.len() - 4096));
    let (dir, opened) = changed.open_on_disk();
    let found = damage(opened.err().unwrap());
    assert!(found.file.ends_with(&path) && found.lost.contains("messages"), "{found}");
    // Accepted, the messages before the cut are served.
    let (store, _, recovered) =
        Store::open(Arc::new(DiskFs), dir.path(), options().accept_damage(), Events::new()).unwrap();
    assert_eq!(recovered.segments.damage, [found]);
    let all = [Interval { first: 0, last: u64::MAX }];
    store.segments.recount(GROUP, &mut |_| all.to_vec()).unwrap();
    assert!(store.segments.usage().1 > 20);
}

#[test]
fn a_flipped_bit_in_a_segment_never_reaches_a_reader() {
    let (files, model) = make(false);
    let path = files.in_dir("segments", "segment").pop().unwrap();
    for at in (0..files.get(&path).len()).step_by(61) {
        let opened = files.change(&path, |bytes| bytes[at] ^= 4).open_in_memory();
        let Ok((store, _, _)) = opened else {
            assert!(at < 64, "only the header is needed to open a segment");
            continue;
        };
        for queue in 0..3 {
            match store.segments.read_queue(GROUP, QueueKey(queue), 0, u64::MAX) {
                Ok(messages) => {
                    for message in messages {
                        assert_eq!(message.body, model.entries[message.sequence as usize - 1].payload, "byte {at}");
                    }
                }
                Err(error) => assert!(damage(error).file.ends_with(&path)),
            }
        }
    }
}

#[test]
fn accepted_damage_keeps_what_comes_before_and_never_reuses_a_place() {
    let (files, model) = make(true);
    let logs = files.logs();
    let path = &logs[1];
    let inside = frames(files.get(path));
    let (start, length) = inside[inside.len() / 2];
    let changed = files.change(path, |bytes| bytes[start + length - 20] ^= 1);
    let (dir, opened) = changed.open_on_disk();
    assert!(opened.is_err());
    let accept = || Store::open(Arc::new(DiskFs), dir.path(), options().accept_damage(), Events::new()).unwrap();
    let (store, mut writer, recovered) = accept();
    let found = recovered.log.damage.unwrap();
    assert!(found.file.ends_with(path) && found.offset == start as u64, "{found}");
    let kept = Model::read(&store.log, GROUP).unwrap();
    assert!(kept.entries.len() > 10 && kept.entries.iter().eq(model.entries.iter().take(kept.entries.len())));
    store.log.submit(submission(GROUP.0, 1, vec![append(kept.last().next().0, 9, vec![1; 10])]));
    writer.turn();
    assert!(store.log.usage().files == 3, "two old files and a new one");
    assert!(dir.path().join("log/00000000000000000003.log.lost").exists(), "kept for inspection");
    assert!(dir.path().join("log/00000000000000000004.log").exists(), "the numbers of lost files are not used again");
    drop((store, writer));
    // From then on the log is sound.
    let (store, _, recovered) = open(Arc::new(DiskFs), dir.path()).unwrap();
    assert_eq!(recovered.log.damage, None);
    assert_eq!(store.log.status(GROUP).unwrap().last, kept.last().next());
    assert_eq!(store.log.term(GROUP, kept.last().next()), Some(Term(9)));
}

#[test]
fn payload_damage_in_an_older_file_is_found_by_the_reader_when_opening_is_quick() {
    let (files, model) = make(true);
    let path = &files.logs()[0];
    let (start, length) = frames(files.get(path))[3];
    let fs = SimFs::new(1);
    files.change(path, |bytes| bytes[start + length - 30] ^= 1).write_to(&fs, Path::new("data"));
    let quick = LogOptions { verify: warrenmq_storage::Verify::Newest, ..small_options() };
    let options = StoreOptions { log: quick, ..StoreOptions::default() };
    let (store, _, _) = Store::open(Arc::new(fs), Path::new("data"), options, Events::new()).unwrap();
    let found = damage(Model::read(&store.log, GROUP).unwrap_err());
    assert!(found.file.ends_with(path) && found.offset == start as u64, "{found}");
    let later = store.log.entries(GROUP, model.last(), 10_000).unwrap();
    assert_eq!(later[0].payload, model.entries.back().unwrap().payload, "the rest is readable");
}

#[test]
fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, writer, _) = open(Arc::new(DiskFs), dir.path()).unwrap();
    assert!(matches!(open(Arc::new(DiskFs), dir.path()), Err(StorageError::InUse { .. })));
    drop((store, writer));
    open(Arc::new(DiskFs), dir.path()).unwrap();
}

#[test]
fn another_nodes_log_is_refused() {
    let (mine, _) = make(false);
    let (other, _) = make(false);
    let identity = Path::new("identity");
    let (_dir, opened) = mine.change(identity, |bytes| *bytes = other.get(identity).to_vec()).open_on_disk();
    assert!(matches!(opened, Err(StorageError::Foreign { .. })));
    let (_dir, opened) = mine.without(identity).open_on_disk();
    assert!(damage(opened.err().unwrap()).file.ends_with(identity));
}

#[test]
fn a_node_keeps_its_log_when_it_joins_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut writer, _) = open(Arc::new(DiskFs), dir.path()).unwrap();
    store.log.submit(submission(GROUP.0, 1, vec![append(1, 1, "before")]));
    writer.turn();
    store.join_cluster([5; 16]).unwrap();
    assert!(matches!(store.join_cluster([6; 16]), Err(StorageError::Foreign { .. })));
    drop((store, writer));
    let (store, _, _) = open(Arc::new(DiskFs), dir.path()).unwrap();
    assert_eq!(store.identity.cluster, [5; 16]);
    assert_eq!(store.log.entries(GROUP, Index(1), 100).unwrap()[0].payload, "before");
    assert_eq!(store.log.oldest_file(), FileNumber(1));
}
