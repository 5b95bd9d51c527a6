use std::fs;
use std::path::Path;

use super::report::{Report, size};

/// Less memory than this is little for a run of several ranks.
const LITTLE_MEMORY: u64 = 256 << 20;

pub fn examine(report: &mut Report) {
    report.section("Machine");
    let name = rustix::system::uname();
    report.fact("host", name.nodename().to_string_lossy());
    report.fact(
        "system",
        format!(
            "{} {}",
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy()
        ),
    );
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    report.fact(
        "cores",
        format!(
            "{usable} for this process; the machine's: {}",
            or_unknown(online.trim())
        ),
    );
    let quota = in_cgroup("cpu.max", "cpu/cpu.cfs_quota_us", cpu_quota);
    report.fact(
        "cgroup: processor time",
        quota.map_or("no limit".to_owned(), |cpus| format!("{cpus:.1} processors")),
    );
    memory(report);
    shared_memory(report);
}

fn memory(report: &mut Report) {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo_field(&meminfo, "MemAvailable");
    let total = meminfo_field(&meminfo, "MemTotal");
    let shown = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
    report.fact(
        "memory",
        format!("{} available of {}", shown(available), shown(total)),
    );
    let limit = in_cgroup("memory.max", "memory/memory.limit_in_bytes", |text| {
        memory_limit(text, total)
    });
    let used = in_cgroup("memory.current", "memory/memory.usage_in_bytes", |text| {
        text.trim().parse::<u64>().ok()
    });
    report.fact("cgroup: memory", limit.map_or("no limit".to_owned(), size));
    let left = limit.map(|limit| limit.saturating_sub(used.unwrap_or(0)));
    let left = left.into_iter().chain(available).min();
    if let Some(left) = left.filter(|left| *left < LITTLE_MEMORY) {
        report.problem(
            format!("only {} of memory is left to this process", size(left)),
            "end other processes, or raise the memory limit of the container or job (`--memory`, `--mem`, `resources.limits`)",
        );
    }
}

fn shared_memory(report: &mut Report) {
    let in_files = rustix::fs::statvfs("/dev/shm").map(|stat| size(stat.f_blocks * stat.f_frsize));
    report.fact(
        "/dev/shm",
        match in_files {
            Ok(size) => format!(
                "{size}; Firebrand does not use it, so that a small one (64 MiB in Docker) is no problem"
            ),
            Err(_) => "none; Firebrand does not use it".to_owned(),
        },
    );
    // What Firebrand uses instead.
    match rustix::fs::memfd_create("firebrand-doctor", rustix::fs::MemfdFlags::CLOEXEC) {
        Ok(_) => report.fact("shared memory", "memfd works"),
        Err(error) => {
            report.fact("shared memory", format!("memfd is refused: {error}"));
            report.problem(
                format!("the system refuses shared memory without a name (memfd_create: {error})"),
                "allow memfd_create in the container's seccomp profile, or set FIREBRAND_COLLECTIVE=tcp",
            );
        }
    }
}

/// What a file of this process's cgroup says, or that of the closest one around it that says something. The first version of
/// cgroups keeps its files elsewhere.
fn in_cgroup<T>(file: &str, first_version: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let root = Path::new("/sys/fs/cgroup");
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or("");
    let around = Path::new(own).ancestors().map(|path| root.join(path).join(file));
    around
        .chain([root.join(first_version)])
        .find_map(|path| read(&fs::read_to_string(path).ok()?))
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

/// `MemTotal:  16384 kB`
fn meminfo_field(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// `max`, or bytes; the first version writes a huge number for no limit.
fn memory_limit(text: &str, total: Option<u64>) -> Option<u64> {
    let limit: u64 = text.trim().parse().ok()?;
    total.is_none_or(|total| limit < total).then_some(limit)
}

/// `max 100000`, or the microseconds of each period: `200000 100000` is two processors. The first version has the first alone.
fn cpu_quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(100_000.0);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let text = "MemTotal:       24551584 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(meminfo_field(text, "MemTotal"), Some(24_551_584 * 1024));
        assert_eq!(meminfo_field(text, "MemAvailable"), Some(20_000_000 * 1024));
        assert_eq!(meminfo_field(text, "Mem"), None);
        assert_eq!(memory_limit("max", Some(100)), None);
        assert_eq!(memory_limit("50\n", Some(100)), Some(50));
        assert_eq!(memory_limit("9223372036854771712", Some(100)), None);
        assert_eq!(cpu_quota("max 100000"), None);
        assert_eq!(cpu_quota("150000 100000"), Some(1.5));
        assert_eq!(cpu_quota("-1"), None);
        assert_eq!(cpu_quota("200000"), Some(2.0));
    }
}
