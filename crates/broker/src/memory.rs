//! How much memory the node may use and how much it uses: the figures behind the memory alarm.
//!
//! The total is the smallest of what the machine has and what the control groups of the process allow, so that a node in a container
//! measures itself against its container. The functions that parse are pure; [`total_bytes`] and [`resident_bytes`] read the files.

use std::path::{Component, Path};

/// Where the kernel shows control groups.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// How much memory may be in use before publishers are blocked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Watermark {
    /// A fraction of the total memory.
    Relative(f64),
    /// A number of bytes.
    Absolute(u64),
}

impl Default for Watermark {
    /// 60 %: the broker shares the machine with the page cache that its log needs.
    fn default() -> Self {
        Self::Relative(0.6)
    }
}

impl Watermark {
    /// The limit in bytes, of a total in bytes. A fraction below 0, or one that is no number, counts as 0.
    #[must_use]
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn limit_bytes(self, total_bytes: u64) -> u64 {
        match self {
            // The cast saturates at both ends and maps NaN to 0; a watermark needs no 53 bits.
            Self::Relative(fraction) => (total_bytes as f64 * fraction) as u64,
            Self::Absolute(bytes) => bytes,
        }
    }
}

/// A text that is no size.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is not a size: expected a whole number of bytes, or one with a unit such as 512MiB, 2GB or 64k")]
pub struct SizeError(String);

/// A number of bytes as RabbitMQ writes it: `1048576`, `200MB`, `2GiB`, `4Gi`, `64k`. Upper and lower case are the same; `kB`, `MB`, `GB`, `TB`,
/// `PB` are powers of 1000, `k`, `Ki`, `kiB` and so on powers of 1024.
///
/// # Errors
/// [`SizeError`]: anything else, fractions and spaces among it, and numbers above 2^64 - 1.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let (prefix, base) = match unit.as_bytes() {
        [] => (None, 1),
        [prefix] | [prefix, b'i'] | [prefix, b'i', b'b'] => (Some(prefix), 1024),
        [prefix, b'b'] => (Some(prefix), 1000),
        _ => return Err(error()),
    };
    let exponent = match prefix {
        None => 0,
        Some(prefix) => 1 + "kmgtp".bytes().position(|known| known == *prefix).ok_or_else(error)?,
    };
    let number: u64 = number.parse().map_err(|_| error())?;
    (0..exponent).try_fold(number, |bytes, _| bytes.checked_mul(base)).ok_or_else(error)
}

/// The memory that the node may count as its own, in bytes: the smallest of the machine's and the control groups' limits. `None` where
/// the system does not say.
#[must_use]
pub fn total_bytes() -> Option<u64> {
    let physical = read("/proc/meminfo").and_then(|meminfo| physical_bytes(&meminfo));
    let cgroups = read("/proc/self/cgroup").unwrap_or_default();
    smallest_limit(physical, &cgroups, |path| read(path))
}

/// The memory that the process holds now (its resident set), in bytes.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    read("/proc/self/status").and_then(|status| resident_bytes_in(&status))
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
#[must_use]
pub fn physical_bytes(meminfo: &str) -> Option<u64> {
    kibibytes_field(meminfo, "MemTotal:")
}

/// `VmRSS` of `/proc/PID/status`, in bytes. (`statm` has the same figure in pages, and their size is not in it.)
#[must_use]
pub fn resident_bytes_in(status: &str) -> Option<u64> {
    kibibytes_field(status, "VmRSS:")
}

/// The limit that a control group's file states, in bytes: `memory.max` of version 2, where `max` is no limit, or
/// `memory.limit_in_bytes` of version 1, where a number near 2^63 stands for none.
#[must_use]
pub fn cgroup_limit_bytes(content: &str) -> Option<u64> {
    content.trim().parse().ok()
}

/// The smallest of `physical` and all limits of the groups in `/proc/self/cgroup`. A group's limit also holds its subgroups down, so
/// every parent is asked. `read` gives the content of a file.
fn smallest_limit(
    physical: Option<u64>,
    proc_self_cgroup: &str,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let mut smallest = physical;
    for line in proc_self_cgroup.lines() {
        // "hierarchy:controllers:path"; version 2 is hierarchy 0 without controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = if hierarchy == "0" && controllers.is_empty() {
            (Path::new(CGROUP_ROOT).to_owned(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (Path::new(CGROUP_ROOT).join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        // In a container the path may be that of the host, and the container's own group be mounted at the root: files that are
        // not there are passed over, the root's is among the parents.
        let path = Path::new(path);
        if path.components().any(|part| part == Component::ParentDir) {
            continue;
        }
        for group in path.ancestors() {
            let group = group.strip_prefix("/").unwrap_or(group);
            let limit = read(&mount.join(group).join(file)).and_then(|content| cgroup_limit_bytes(&content));
            smallest = [smallest, limit].into_iter().flatten().min();
        }
    }
    smallest
}

/// The value of a line `NAME:   123 kB`, in bytes.
fn kibibytes_field(content: &str, name: &str) -> Option<u64> {
    let line = content.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("200MB", 200_000_000),
            ("2GiB", 2 * GIB),
            ("4Gi", 4 * GIB),
            ("1kB", 1000),
            ("1KB", 1000),
            ("1k", 1024),
            ("1K", 1024),
            ("1kiB", 1024),
            ("1m", 1 << 20),
            ("1mb", 1_000_000),
            ("1g", GIB),
            ("1TB", 1_000_000_000_000),
            ("1PiB", 1 << 50),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "MB",
            "-1",
            "+1",
            "1.5GB",
            "1 MB",
            "1B",
            "1x",
            "1iB",
            "1MiBB",
            "1é",
            "18446744073709551616",
            "99999999PB",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn watermark_is_a_share_or_a_number() {
        assert_eq!(Watermark::Relative(0.5).limit_bytes(8 * GIB), 4 * GIB);
        assert_eq!(Watermark::Absolute(7).limit_bytes(8 * GIB), 7);
        assert_eq!(Watermark::Relative(0.0).limit_bytes(8 * GIB), 0);
        assert_eq!(Watermark::Relative(-1.0).limit_bytes(8 * GIB), 0);
        assert_eq!(Watermark::Relative(f64::NAN).limit_bytes(8 * GIB), 0);
        assert_eq!(Watermark::Relative(f64::INFINITY).limit_bytes(8 * GIB), u64::MAX);
    }

    #[test]
    fn fields_of_proc_are_in_kibibytes() {
        assert_eq!(physical_bytes("MemTotal:       24576000 kB\nMemFree: 1 kB\n"), Some(24_576_000 * 1024));
        assert_eq!(resident_bytes_in("Name:\twarrenmq\nVmHWM:\t  9 kB\nVmRSS:\t    4096 kB\n"), Some(4 << 20));
        assert_eq!(physical_bytes("MemTotal: much\n"), None);
        assert_eq!(physical_bytes(""), None);
    }

    fn limit(physical: u64, cgroup: &str, files: &[(&str, &str)]) -> Option<u64> {
        smallest_limit(Some(physical), cgroup, |path| {
            let path = path.to_str().expect("ASCII");
            files.iter().find(|(name, _)| *name == path).map(|(_, content)| (*content).to_owned())
        })
    }

    #[test]
    fn container_limit_of_version_2_counts_when_smaller() {
        let files = [("/sys/fs/cgroup/memory.max", "2147483648\n")];
        assert_eq!(limit(8 * GIB, "0::/\n", &files), Some(2 * GIB));
        assert_eq!(limit(GIB, "0::/\n", &files), Some(GIB));
        assert_eq!(limit(8 * GIB, "0::/\n", &[("/sys/fs/cgroup/memory.max", "max\n")]), Some(8 * GIB));
    }

    #[test]
    fn limit_of_a_parent_group_counts() {
        let files = [
            ("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/system.slice/warrenmq.service/memory.max", "max\n"),
        ];
        assert_eq!(limit(8 * GIB, "0::/system.slice/warrenmq.service\n", &files), Some(GIB));
    }

    #[test]
    fn limit_of_version_1_counts_wherever_the_container_mounts_it() {
        let cgroup = "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/docker/abc\n";
        let inside = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n")];
        assert_eq!(limit(8 * GIB, cgroup, &inside), Some(GIB));
        let outside = [("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n")];
        assert_eq!(limit(8 * GIB, cgroup, &outside), Some(GIB));
        let unlimited = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(limit(8 * GIB, cgroup, &unlimited), Some(8 * GIB));
    }

    #[test]
    fn strange_cgroup_lines_are_passed_over() {
        let files = [("/sys/fs/cgroup/memory.max", "1\n")];
        assert_eq!(limit(GIB, "nonsense\n0:\n0::/../../etc\n", &files), Some(GIB));
        assert_eq!(smallest_limit(None, "", |_| None), None);
    }

    #[test]
    fn this_process_has_a_size_and_a_limit() {
        let (resident, total) = (resident_bytes().expect("Linux"), total_bytes().expect("Linux"));
        assert!(resident > 0 && resident < total, "{resident} of {total}");
    }
}
