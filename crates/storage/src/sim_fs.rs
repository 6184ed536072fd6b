//! A disk in memory that can lose power: for tests and the simulator.
//!
//! It keeps what a real one keeps: what was synced. When the power goes ([`SimFs::lose_power`]) every 512-byte sector written
//! since its file's last sync is found in any of its versions since then, independently of all others; names created,
//! renamed or removed since their directory's last sync may or may not be so. It also runs full, refuses writes and syncs
//! on demand, and damages synced bytes. Everything is drawn from a seed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    fs::{File, FileSystem, Listed, Lock},
    sim_rng::SimRng,
};

/// What a disk writes at once or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The disk. Clones are handles on the same one.
#[derive(Clone)]
pub struct SimFs {
    disk: Arc<Mutex<Disk>>,
}

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// The write fails with EIO after an unknown part of it.
    Write,
    /// The sync fails with EIO; what it should have made durable may or may not be, and no later sync will care.
    Sync,
    /// The read fails with EIO.
    Read,
}

type Inode = u64;

struct Disk {
    rng: SimRng,
    /// Rises when the power goes; handles of before are dead.
    epoch: u64,
    files: HashMap<Inode, Content>,
    next_inode: Inode,
    names: BTreeMap<PathBuf, Inode>,
    durable_names: BTreeMap<PathBuf, Inode>,
    unsynced_names: Vec<NameChange>,
    locks: BTreeSet<PathBuf>,
    capacity: u64,
    /// Calls that change something until the power goes.
    power_for: Option<u64>,
    faults: Vec<(SimFault, u64)>,
    sync_delay: Duration,
    elapsed: Duration,
    syncs: u64,
}

enum NameChange {
    Set(PathBuf, Inode),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

#[derive(Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since the last sync, in all their versions.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR_BYTES]>>,
}

impl SimFs {
    /// An empty disk.
    pub fn new(seed: u64) -> SimFs {
        let disk = Disk {
            rng: SimRng::new(seed),
            epoch: 0,
            files: HashMap::new(),
            next_inode: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            locks: BTreeSet::new(),
            capacity: 1 << 40,
            power_for: None,
            faults: Vec::new(),
            sync_delay: Duration::ZERO,
            elapsed: Duration::ZERO,
            syncs: 0,
        };
        SimFs { disk: Arc::new(Mutex::new(disk)) }
    }

    /// Sets the size of the disk in bytes; files that are there stay.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.lock().capacity = bytes;
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.disk.lock().used()
    }

    /// The power goes after so many further calls that change something: that call and all later ones fail.
    pub fn lose_power_after(&self, calls: u64) {
        self.disk.lock().power_for = Some(calls);
    }

    /// Whether the power has gone (and [`SimFs::lose_power`] is due).
    pub fn is_without_power(&self) -> bool {
        self.disk.lock().power_for == Some(0)
    }

    /// Makes one call of a kind fail, after so many of them that succeed.
    pub fn fail_after(&self, fault: SimFault, calls: u64) {
        self.disk.lock().faults.push((fault, calls));
    }

    /// Takes back what was to fail and has not yet.
    pub fn clear_faults(&self) {
        let mut disk = self.disk.lock();
        disk.faults.clear();
        disk.power_for = None;
    }

    /// Every sync of a file takes so long, on the disk's own clock.
    pub fn set_sync_delay(&self, delay: Duration) {
        self.disk.lock().sync_delay = delay;
    }

    /// The disk's own clock: the sum of all delays.
    pub fn elapsed(&self) -> Duration {
        self.disk.lock().elapsed
    }

    /// Syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.disk.lock().syncs
    }

    /// The power goes and comes back: unsynced writes and names are kept, lost or torn at random; open handles are dead.
    pub fn lose_power(&self) {
        self.disk.lock().lose_power();
    }

    /// The process ends without a crash of the machine: nothing is lost, handles are dead, locks free.
    pub fn kill_process(&self) {
        let mut disk = self.disk.lock();
        disk.epoch += 1;
        disk.locks.clear();
        disk.power_for = None;
    }

    /// Changes a synced byte, as a failing medium would. False if the file is not that long.
    pub fn damage(&self, path: &Path, offset: u64, xor: u8) -> bool {
        let mut disk = self.disk.lock();
        let Some(content) = disk.names.get(path).copied().and_then(|inode| disk.files.get_mut(&inode)) else {
            return false;
        };
        let at = offset as usize;
        let known = at < content.now.len() && at < content.durable.len();
        if known {
            content.now[at] ^= xor;
            content.durable[at] ^= xor;
        }
        known
    }

    /// The whole of a file, as it would be read now.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let disk = self.disk.lock();
        Some(disk.files[disk.names.get(path)?].now.clone())
    }

    fn handle(&self, inode: Inode) -> Arc<dyn File> {
        let epoch = self.disk.lock().epoch;
        Arc::new(SimFile { disk: self.disk.clone(), inode, epoch })
    }
}

fn power_lost() -> io::Error {
    io::Error::other("the power is gone")
}

fn missing(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

impl Disk {
    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.files[inode].now.len() as u64).sum()
    }

    /// Called before every change. The call in which the power goes is half done, so it goes on.
    fn spend_power(&mut self) -> io::Result<()> {
        match &mut self.power_for {
            Some(0) => Err(power_lost()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn has_power(&self) -> io::Result<()> {
        if self.power_for == Some(0) { Err(power_lost()) } else { Ok(()) }
    }

    fn fails(&mut self, kind: SimFault) -> bool {
        let mut failed = false;
        self.faults.retain_mut(|(fault, left)| {
            if *fault != kind {
                return true;
            }
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => failed = true,
            }
            !failed
        });
        failed
    }

    fn lose_power(&mut self) {
        self.epoch += 1;
        self.locks.clear();
        self.power_for = None;
        // Extremes are as instructive as mixtures: now and then nothing is lost, or everything.
        let keep_in_eight = self.rng.below(9);
        let mut inodes: Vec<_> = self.files.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            let content = self.files.get_mut(&inode).expect("just listed");
            let rng = &mut self.rng;
            let mut after = std::mem::take(&mut content.durable);
            if content.now.len() > after.len() && (rng.below(8) < keep_in_eight || keep_in_eight == 8) {
                after.resize(content.now.len(), 0);
            }
            for (sector, versions) in std::mem::take(&mut content.unsynced) {
                if rng.below(8) >= keep_in_eight {
                    continue;
                }
                let version = &versions[rng.below(versions.len() as u64) as usize];
                let at = sector * SECTOR_BYTES;
                if at < after.len() {
                    let end = after.len().min(at + SECTOR_BYTES);
                    after[at..end].copy_from_slice(&version[..end - at]);
                }
            }
            content.now = after.clone();
            content.durable = after;
        }
        let mut names = std::mem::take(&mut self.durable_names);
        for change in std::mem::take(&mut self.unsynced_names) {
            if self.rng.below(8) < keep_in_eight {
                change.apply(&mut names);
            }
        }
        self.durable_names = names.clone();
        self.names = names;
        let used: BTreeSet<Inode> = self.names.values().copied().collect();
        self.files.retain(|inode, _| used.contains(inode));
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        self.spend_power()?;
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
        self.has_power()
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Inode>) {
        match self {
            NameChange::Set(path, inode) => {
                names.insert(path.clone(), *inode);
            }
            NameChange::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            NameChange::Remove(path) => {
                names.remove(path);
            }
        }
    }

    fn is_in(&self, dir: &Path) -> bool {
        match self {
            NameChange::Set(path, _) | NameChange::Remove(path) | NameChange::Rename(_, path) => {
                path.parent() == Some(dir)
            }
        }
    }
}

impl FileSystem for SimFs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let inode = {
            let mut disk = self.disk.lock();
            if disk.names.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let inode = disk.next_inode;
            disk.next_inode += 1;
            disk.files.insert(inode, Content::default());
            disk.change_name(NameChange::Set(path.to_path_buf(), inode))?;
            inode
        };
        Ok(self.handle(inode))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let inode = {
            let disk = self.disk.lock();
            disk.has_power()?;
            *disk.names.get(path).ok_or_else(|| missing(path))?
        };
        Ok(self.handle(inode))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>> {
        let disk = self.disk.lock();
        disk.has_power()?;
        let inside = disk.names.iter().filter(|(path, _)| path.parent() == Some(dir));
        let listed = inside.filter_map(|(path, inode)| {
            let name = path.file_name()?.to_str()?.to_string();
            Some(Listed { name, bytes: disk.files[inode].now.len() as u64 })
        });
        Ok(listed.collect())
    }

    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        self.disk.lock().has_power()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        if !disk.names.contains_key(from) {
            return Err(missing(from));
        }
        disk.change_name(NameChange::Rename(from.to_path_buf(), to.to_path_buf()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        if !disk.names.contains_key(path) {
            return Err(missing(path));
        }
        disk.change_name(NameChange::Remove(path.to_path_buf()))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.spend_power()?;
        disk.has_power()?;
        let (synced, rest) = std::mem::take(&mut disk.unsynced_names).into_iter().partition(|change| change.is_in(dir));
        let synced: Vec<NameChange> = synced;
        disk.unsynced_names = rest;
        for change in synced {
            change.apply(&mut disk.durable_names);
        }
        Ok(())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let disk = self.disk.lock();
        disk.has_power()?;
        Ok(disk.capacity.saturating_sub(disk.used()))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let mut disk = self.disk.lock();
        disk.has_power()?;
        if !disk.locks.insert(path.to_path_buf()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { disk: self.disk.clone(), path: path.to_path_buf(), epoch: disk.epoch }))
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut disk = self.disk.lock();
        let (low, high) = (disk.rng.next_u64(), disk.rng.next_u64());
        Ok((u128::from(low) << 64 | u128::from(high)).to_le_bytes())
    }
}

struct SimLock {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    epoch: u64,
}

impl Lock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if disk.epoch == self.epoch {
            disk.locks.remove(&self.path);
        }
    }
}

struct SimFile {
    disk: Arc<Mutex<Disk>>,
    inode: Inode,
    epoch: u64,
}

impl SimFile {
    fn with<T>(&self, call: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.disk.lock();
        if disk.epoch != self.epoch || !disk.files.contains_key(&self.inode) {
            return Err(power_lost());
        }
        disk.has_power()?;
        call(&mut disk)
    }
}

impl Content {
    fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[at..end].copy_from_slice(bytes);
        for sector in at / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let from = sector * SECTOR_BYTES;
            let to = self.now.len().min(from + SECTOR_BYTES);
            let mut version = [0; SECTOR_BYTES];
            version[..to - from].copy_from_slice(&self.now[from..to]);
            self.unsynced.entry(sector).or_default().push(version);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for sector in std::mem::take(&mut self.unsynced).into_keys() {
            let from = sector * SECTOR_BYTES;
            let to = self.now.len().min(from + SECTOR_BYTES);
            self.durable[from..to].copy_from_slice(&self.now[from..to]);
        }
    }
}

impl File for SimFile {
    fn size(&self) -> io::Result<u64> {
        self.with(|disk| Ok(disk.files[&self.inode].now.len() as u64))
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        self.with(|disk| {
            disk.spend_power()?;
            let now = disk.files[&self.inode].now.len() as u64;
            if size.saturating_sub(now) > disk.capacity.saturating_sub(disk.used()) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let content = disk.files.get_mut(&self.inode).expect("checked");
            content.now.resize(now.max(size) as usize, 0);
            disk.has_power()
        })
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.preallocate(size)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.with(|disk| {
            disk.spend_power()?;
            let mut bytes = Vec::new();
            buffers.iter().for_each(|buffer| bytes.extend_from_slice(buffer));
            let mut result = Ok(());
            let grows = (offset + bytes.len() as u64).saturating_sub(disk.files[&self.inode].now.len() as u64);
            if grows > disk.capacity.saturating_sub(disk.used()) {
                result = Err(io::ErrorKind::StorageFull.into());
                bytes.truncate(bytes.len() - grows as usize);
            } else if disk.fails(SimFault::Write) {
                result = Err(io::Error::other("EIO on write"));
                let part = disk.rng.below(bytes.len() as u64 + 1);
                bytes.truncate(part as usize);
            }
            let content = disk.files.get_mut(&self.inode).expect("checked");
            content.write(&bytes, offset as usize);
            result?;
            disk.has_power()
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|disk| {
            if disk.fails(SimFault::Read) {
                return Err(io::Error::other("EIO on read"));
            }
            let now = &disk.files[&self.inode].now;
            let rest = now.get(offset as usize..).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|disk| {
            disk.spend_power()?;
            disk.has_power()?;
            disk.syncs += 1;
            disk.elapsed += disk.sync_delay;
            if disk.fails(SimFault::Sync) {
                let mut rng = disk.rng.clone();
                let content = disk.files.get_mut(&self.inode).expect("checked");
                let kept = |_: &usize, _: &mut Vec<[u8; SECTOR_BYTES]>| rng.one_in(2);
                let mut unsynced = std::mem::take(&mut content.unsynced);
                unsynced.retain(kept);
                content.unsynced = unsynced;
                content.sync();
                disk.rng = rng;
                return Err(io::Error::other("EIO on sync"));
            }
            disk.files.get_mut(&self.inode).expect("checked").sync();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &dyn File, bytes: &[u8], at: u64) {
        file.write_at(&[IoSlice::new(bytes)], at).unwrap();
    }

    #[test]
    fn synced_bytes_survive_and_unsynced_sectors_are_lost_one_by_one() {
        let dir = Path::new("d");
        let path = dir.join("f");
        let mut outcomes = BTreeSet::new();
        for seed in 0..200 {
            let fs = SimFs::new(seed);
            let file = fs.create(&path).unwrap();
            write(&*file, &[1; 1024], 0);
            file.sync().unwrap();
            fs.sync_dir(dir).unwrap();
            write(&*file, &[2; 1024], 0);
            fs.lose_power();
            assert!(file.size().is_err(), "handles are dead");
            let found = fs.contents(&path).unwrap();
            assert!(found.chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
            outcomes.insert((found[0], found[512]));
        }
        assert_eq!(outcomes.len(), 4);
    }

    #[test]
    fn a_name_that_was_not_synced_may_vanish() {
        let dir = Path::new("d");
        let mut outcomes = BTreeSet::new();
        for seed in 0..100 {
            let fs = SimFs::new(seed);
            fs.create(&dir.join("f")).unwrap().sync().unwrap();
            fs.lose_power();
            outcomes.insert(fs.list(dir).unwrap().len());
        }
        assert_eq!(outcomes, BTreeSet::from([0, 1]));
    }

    #[test]
    fn a_full_disk_refuses_to_grow_but_takes_writes_in_place() {
        let fs = SimFs::new(1);
        fs.set_capacity(4096);
        let file = fs.create(Path::new("d/f")).unwrap();
        file.preallocate(4096).unwrap();
        write(&*file, b"in place", 100);
        let error = file.write_at(&[IoSlice::new(b"beyond")], 4094).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs.free_bytes(Path::new("d")).unwrap(), 0);
    }

    #[test]
    fn after_a_failed_sync_a_second_one_makes_nothing_durable() {
        let mut lost = 0;
        for seed in 0..50 {
            let fs = SimFs::new(seed);
            let path = Path::new("d/f");
            let file = fs.create(path).unwrap();
            file.preallocate(512).unwrap();
            file.sync().unwrap();
            fs.sync_dir(Path::new("d")).unwrap();
            write(&*file, &[7; 512], 0);
            fs.fail_after(SimFault::Sync, 0);
            file.sync().unwrap_err();
            file.sync().unwrap();
            fs.lose_power();
            lost += usize::from(fs.contents(path).unwrap() != [7; 512]);
        }
        assert!((10..40).contains(&lost), "{lost}");
    }
}
