//! Opening the log: which frames are good, where the log ends, and whether what is missing was ever synced.
//!
//! The rules, for a frame that is bad or absent where one is expected:
//! - in a file that has a successor: the successor's header says where the file ended when it was complete and synced, so
//!   anything bad before that is *damage*;
//! - in the newest file, if a frame further on says that this place was synced when it was written: *damage*;
//! - in the newest file otherwise: the *end of the log*. If there are traces of a frame there (its header, frames behind it
//!   that prove nothing, bytes in a part of the file that was never written before) it was a torn tail, and is cut off
//!   with a warning. Nothing of it was ever reported as written.
//!
//! The next session numbers its frames with a higher session, which makes leftovers behind the end invalid. A log opened
//! in spite of damage goes on in a new file with a number never used, so that a place in what is lost names nothing.

use std::{
    collections::BTreeMap,
    fmt,
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex, RwLock};

use super::{
    Completion, Inbox, Log, LogOptions, Shared, State, Verify, Writer,
    files::{LogFile, log_path, parse_name},
    header::{FileHeader, HEADER_BYTES, HeaderFault, LOG_FORMAT, UnverifiedHeader},
    index::FramePlace,
    pool::Pool,
    record::Record,
    scan::Scan,
    writer::{CurrentFile, salt, start_file},
};
use crate::{
    cache::ChunkCache,
    error::{Damage, StorageError},
    fs::{File, FileSystem, read_up_to},
    identity::Identity,
    types::{FileNumber, FrameNumber},
};

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Frames of the log.
    pub frames: u64,
    /// The torn frame at the end that was cut off, if there were traces of one.
    pub torn: Option<TornTail>,
    /// Damage that was accepted, because the options say so.
    pub damage: Option<Damage>,
}

/// A write at the end of the log that had not been synced. Nothing of it was reported as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The file.
    pub file: PathBuf,
    /// Where the log ends now.
    pub offset: u64,
    /// Bytes cut off, as far as there are traces of them.
    pub dropped_bytes: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TornTail { file, offset, dropped_bytes } = self;
        write!(f, "{}: {dropped_bytes} bytes at offset {offset} that had not been synced are cut off", file.display())
    }
}

pub(super) fn open(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    identity: Identity,
    options: LogOptions,
    completion: Arc<dyn Completion>,
) -> Result<(Log, Writer, Recovered), StorageError> {
    assert!(options.reserve_bytes >= 2 * HEADER_BYTES && options.file_bytes > options.reserve_bytes);
    fs.create_dir(dir).map_err(StorageError::io("create", dir))?;
    let pool = Pool::open(fs.clone(), dir, options.clone())?;
    let mut recovery = Recovery::new(&*fs, dir, identity, &options)?;
    recovery.read_all()?;
    let end = recovery.finish(&pool)?;
    let Recovery { state, recovered, .. } = recovery;
    if let Some(torn) = &recovered.torn {
        let TornTail { file, offset, dropped_bytes } = torn;
        tracing::warn!(file = %file.display(), offset, dropped_bytes, "cut off a torn tail of the log");
    }
    if let Some(Damage { file, offset, lost }) = &recovered.damage {
        tracing::error!(file = %file.display(), offset, lost, "opened a damaged log without what is lost");
    }
    let cache = Mutex::new(ChunkCache::new(options.cache_bytes));
    let shared = Arc::new(Shared {
        fs,
        dir: dir.to_path_buf(),
        options,
        identity,
        inbox: Mutex::new(Inbox::default()),
        wake_writer: Condvar::new(),
        state: RwLock::new(state),
        pool,
        cache,
        stopped: RwLock::new(None),
        maintenance: Mutex::new(true),
        wake_maintenance: Condvar::new(),
    });
    let writer = Writer::new(shared.clone(), completion, end.file, end.next_frame, end.session);
    Ok((Log { shared }, writer, recovered))
}

/// Where writing goes on.
struct End {
    file: CurrentFile,
    next_frame: FrameNumber,
    session: u32,
}

struct Recovery<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    options: &'a LogOptions,
    identity: Identity,
    state: State,
    /// The highest number of any file in the directory.
    highest: FileNumber,
    next_frame: FrameNumber,
    session: u32,
    /// Where the last file that was read ends.
    end: Option<CurrentFile>,
    recovered: Recovered,
    /// Files that were announced as superfluous, and that a crash kept from leaving.
    superfluous: Vec<FileNumber>,
}

/// A header, or what is wrong with it.
type Header = Result<FileHeader, &'static str>;

impl<'a> Recovery<'a> {
    fn new(
        fs: &'a dyn FileSystem,
        dir: &'a Path,
        identity: Identity,
        options: &'a LogOptions,
    ) -> Result<Recovery<'a>, StorageError> {
        let (groups, files) = (BTreeMap::new(), BTreeMap::new());
        Ok(Recovery {
            fs,
            dir,
            options,
            identity,
            state: State { chunk_bytes: options.chunk_bytes, groups, files, accounted: false, oldest: FileNumber(0) },
            highest: FileNumber(0),
            next_frame: FrameNumber(1),
            session: 0,
            end: None,
            recovered: Recovered::default(),
            superfluous: Vec::new(),
        })
    }

    fn read_all(&mut self) -> Result<(), StorageError> {
        let mut headers: BTreeMap<FileNumber, (Arc<dyn File>, Header)> = BTreeMap::new();
        for listed in self.fs.list(self.dir).map_err(StorageError::io("list", self.dir))? {
            if let Some(number) = parse_name(&listed.name) {
                headers.insert(number, self.open_file(number)?);
            }
        }
        let Some((&newest, _)) = headers.last_key_value() else { return Ok(()) };
        self.highest = newest;
        let chain = chain(&headers);
        for (at, number) in chain.iter().enumerate() {
            let (file, header) = &headers[number];
            let successor = chain.get(at + 1).and_then(|next| headers[next].1.as_ref().ok());
            let newest = at + 1 == chain.len();
            if !self.read_file(*number, file, header, successor, newest)? {
                self.set_aside(&chain[at + 1..])?;
                if header.is_err() {
                    self.set_aside(&[*number])?;
                }
                break;
            }
        }
        self.check_oldest(chain[0], headers[&chain[0]].1.as_ref().ok())?;
        self.superfluous.extend(headers.keys().filter(|&&number| number < self.state.oldest));
        let cut_off = headers.keys().filter(|&number| *number >= self.state.oldest && !chain.contains(number));
        self.set_aside(&cut_off.copied().collect::<Vec<_>>())?;
        Ok(())
    }

    fn open_file(&self, number: FileNumber) -> Result<(Arc<dyn File>, Header), StorageError> {
        let path = log_path(self.dir, number);
        let file = self.fs.open(&path).map_err(StorageError::io("open", &path))?;
        let bytes = read_up_to(&*file, 0, HEADER_BYTES as usize).map_err(StorageError::io("read", &path))?;
        let header = match UnverifiedHeader::decode(&bytes) {
            Ok(header) => match header.verify(&self.identity) {
                Some(header) if header.number == number => Ok(header),
                Some(_) => Err("the header is of another file"),
                None => return Err(StorageError::Foreign { file: path }),
            },
            Err(HeaderFault::Newer(found)) => {
                return Err(StorageError::NewerFormat { file: path, found, supported: LOG_FORMAT });
            }
            Err(_) => Err("the header is unreadable, and with it the file"),
        };
        Ok((file, header))
    }

    /// Reads a file's frames. False if the log ends in it, because damage was accepted.
    fn read_file(
        &mut self,
        number: FileNumber,
        file: &Arc<dyn File>,
        header: &Header,
        successor: Option<&FileHeader>,
        newest: bool,
    ) -> Result<bool, StorageError> {
        let path = log_path(self.dir, number);
        let header = match header {
            Ok(header) => header,
            Err(lost) => {
                self.damage(path, 0, (*lost).into())?;
                return Ok(false);
            }
        };
        if self.end.is_none() {
            self.next_frame = header.first_frame;
        }
        self.session = header.session;
        self.state.files.insert(number, LogFile::new(path.clone(), file.clone(), header.clone()));
        let verify = newest || self.options.verify == Verify::All;
        let mut scan = Scan::new(&**file, &path, header, verify)?;
        let mut offset = HEADER_BYTES;
        let mut sealed = None;
        while successor.is_none_or(|successor| successor.previous_end != offset) {
            let Some((frame, records)) = scan.frame(offset, self.next_frame, self.session)? else { break };
            if let [Record::Sealed { next }] = records[..] {
                sealed = Some(next);
                break;
            }
            self.take_frame(FramePlace { file: number, offset }, frame.frame_length() as u32, &records)?;
            self.session = frame.session;
            offset += frame.frame_length() as u32;
        }
        self.end = Some(CurrentFile {
            number,
            file: file.clone(),
            path: path.clone(),
            salt: header.salt,
            capacity: header.capacity,
            end: offset,
            synced: offset,
        });
        if let Some(successor) = successor {
            if successor.previous_end == offset && successor.first_frame == self.next_frame {
                return Ok(true);
            }
            let lost = format!("synced frames up to offset {} are missing", successor.previous_end);
            self.damage(path, u64::from(offset), lost)?;
            return Ok(false);
        }
        if !newest {
            // Its successor's header is damaged, which is found next.
            return Ok(true);
        }
        if let Some(next) = sealed {
            let lost = format!("log file {next}, which followed, is missing");
            self.damage(log_path(self.dir, next), 0, lost)?;
            self.highest = self.highest.max(next);
            return Ok(false);
        }
        let traces = scan.traces(offset, self.next_frame, self.session)?;
        self.session = traces.session;
        if traces.synced_beyond {
            let lost = format!("synced frames from {} on are missing", self.next_frame);
            self.damage(path, u64::from(offset), lost)?;
            return Ok(false);
        }
        if traces.end > u64::from(offset) {
            let dropped_bytes = traces.end - u64::from(offset);
            wipe(&**file, u64::from(offset), dropped_bytes).map_err(StorageError::io("clear the tail of", &path))?;
            self.recovered.torn = Some(TornTail { file: path, offset: u64::from(offset), dropped_bytes });
        }
        Ok(true)
    }

    fn take_frame(&mut self, place: FramePlace, length: u32, records: &[Record]) -> Result<(), StorageError> {
        self.next_frame.0 += 1;
        self.recovered.frames += 1;
        self.state.note_frame(place, length);
        for record in records {
            self.state.apply(record, place).map_err(|gap| {
                let lost = format!("a record does not continue its group ({} after {})", gap.got, gap.last);
                StorageError::damaged(log_path(self.dir, place.file), u64::from(place.offset), lost)
            })?;
        }
        Ok(())
    }

    /// The files before the first one read must have been announced as superfluous, and every group must be whole.
    fn check_oldest(&mut self, first: FileNumber, header: Option<&FileHeader>) -> Result<(), StorageError> {
        let Some(header) = header else { return Ok(()) };
        if header.previous.0 > 0 && header.previous >= self.state.oldest {
            let lost = format!("log files {} to {} are missing", self.state.oldest.0.max(1), header.previous);
            self.damage(log_path(self.dir, header.previous), 0, lost)?;
        }
        let broken = self.state.groups.iter().filter(|(_, log)| !log.is_complete());
        for group in broken.map(|(&group, _)| group).collect::<Vec<_>>() {
            let lost = format!("entries of group {group} before this file are missing");
            self.damage(log_path(self.dir, first), 0, lost)?;
            self.state.groups.remove(&group);
        }
        Ok(())
    }

    /// Notes damage if the options accept it, refuses otherwise.
    fn damage(&mut self, file: PathBuf, offset: u64, lost: String) -> Result<(), StorageError> {
        if !self.options.accept_damage {
            return Err(StorageError::damaged(file, offset, lost));
        }
        self.recovered.damage.get_or_insert(Damage { file, offset, lost });
        Ok(())
    }

    /// Files after accepted damage are kept for inspection under another name, but no longer belong to the log.
    fn set_aside(&mut self, numbers: &[FileNumber]) -> Result<(), StorageError> {
        for &number in numbers {
            let path = log_path(self.dir, number);
            let aside = path.with_extension("log.lost");
            self.fs.rename(&path, &aside).map_err(StorageError::io("rename", &path))?;
        }
        Ok(())
    }

    /// A file is preallocated before it gets its name, so a shorter one was cut, and nobody can say what is missing.
    fn warn_if_shortened(&self, file: &CurrentFile) -> Result<(), StorageError> {
        let size = file.file.size().map_err(StorageError::io("read", &file.path))?;
        if size < u64::from(file.capacity) {
            let missing_bytes = u64::from(file.capacity) - size;
            tracing::warn!(file = %file.path.display(), size, missing_bytes, "the newest log file was shortened");
        }
        Ok(())
    }

    /// Makes what was read durable (a killed process may have left it in the page cache) and says where to go on: behind
    /// it, or in a new file if there is none or damage was accepted.
    fn finish(&mut self, pool: &Pool) -> Result<End, StorageError> {
        self.fs.sync_dir(self.dir).map_err(StorageError::io("sync", self.dir))?;
        let session = self.session + 1;
        let next_frame = self.next_frame;
        let left = self.end.take();
        if let Some(left) = &left {
            left.file.sync().map_err(StorageError::io("sync", &left.path))?;
        }
        // They are not to be read again: their survivors are in segments, whatever an older state snapshot says. They leave
        // only now that the announcement is surely durable.
        for number in self.superfluous.drain(..) {
            self.state.files.remove(&number);
            let path = log_path(self.dir, number);
            self.fs.remove(&path).map_err(StorageError::io("remove", path))?;
        }
        if let (Some(mut file), None) = (left.as_ref().map(CurrentFile::again), &self.recovered.damage) {
            self.warn_if_shortened(&file)?;
            file.capacity =
                lengthen(&*file.file, file.capacity, file.end).map_err(StorageError::io("allocate", &file.path))?;
            return Ok(End { file, next_frame, session });
        }
        let number = self.highest.next();
        let free = pool.take()?;
        let fail = |(what, error)| StorageError::io(what, log_path(self.dir, number))(error);
        let header = FileHeader {
            identity: self.identity,
            number,
            salt: salt(self.fs).map_err(fail)?,
            first_frame: next_frame,
            capacity: free.capacity,
            previous: left.as_ref().map_or(FileNumber(0), |left| left.number),
            previous_end: left.as_ref().map_or(0, |left| left.end),
            session,
            dirty_end: free.dirty_end,
        };
        let (file, listed) = start_file(self.fs, self.dir, free, header).map_err(fail)?;
        if left.is_none() {
            self.state.oldest = number;
        }
        self.state.files.insert(number, listed);
        Ok(End { file, next_frame, session })
    }
}

/// The files that follow one another up to the newest, oldest first. A file whose header is bad is in the chain, so that its
/// damage is found; it is taken to follow the one before it in number.
fn chain(headers: &BTreeMap<FileNumber, (Arc<dyn File>, Header)>) -> Vec<FileNumber> {
    let mut chain = Vec::new();
    let mut next = headers.keys().next_back().copied();
    while let Some(number) = next {
        chain.push(number);
        let previous = match &headers[&number].1 {
            Ok(header) => Some(header.previous),
            Err(_) => headers.range(..number).next_back().map(|(&number, _)| number),
        };
        // Numbers fall, so a damaged header cannot lead in a circle.
        next = previous.filter(|previous| *previous < number && headers.contains_key(previous));
    }
    chain.reverse();
    chain
}

/// Overwrites a torn tail with zeros, so that it is not reported again.
fn wipe(file: &dyn File, offset: u64, bytes: u64) -> std::io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = offset;
    let end = offset + bytes;
    while at < end {
        let length = (end - at).min(ZEROS.len() as u64);
        file.write_at(&[IoSlice::new(&ZEROS[..length as usize])], at)?;
        at += length;
    }
    Ok(())
}

/// Restores the length of a file that was cut. On a full disk the file just ends earlier.
fn lengthen(file: &dyn File, capacity: u32, end: u32) -> std::io::Result<u32> {
    let size = file.size()?;
    if size >= u64::from(capacity) {
        return Ok(capacity);
    }
    match file.preallocate(u64::from(capacity)) {
        Ok(()) => Ok(capacity),
        Err(error) if crate::error::is_full(&error) => Ok(end.max(u32::try_from(size).unwrap_or(capacity))),
        Err(error) => Err(error),
    }
}
