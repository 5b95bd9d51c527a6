//! The memory of this process, as Linux tells it.

/// How much is resident now, in MiB.
pub(crate) fn resident_mib() -> Option<f64> {
    status_mib("VmRSS:")
}

/// How much was resident at most so far, in MiB.
pub(crate) fn peak_mib() -> Option<f64> {
    status_mib("VmHWM:")
}

fn status_mib(key: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn resident_memory_follows_what_is_used() {
        let before = resident_mib().unwrap();
        let used = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident_mib().unwrap();
        assert!(peak_mib().unwrap() >= after);
        assert!(after - before > 32.0, "{before} {after} {}", used.len());
    }
}
