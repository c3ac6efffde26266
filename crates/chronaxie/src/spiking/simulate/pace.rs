//! How long the chunks of a run are, between which its spikes are hashed and recorded.

/// Steps of the next chunk, where `left` are left; of the last steps of a run (`last`) half at a time, down to `least`: the spikes
/// of its last chunk are booked while nothing runs.
pub(crate) fn next(chunk: u64, left: u64, last: bool, least: u64) -> u64 {
    let most = if last { (left / 2).max(least) } else { left };
    chunk.min(most).min(left)
}

/// The length of chunks after one of `steps` steps took so many seconds: about a fifth of a second between looks at the
/// keyboard; the spikes do not depend on it.
pub(crate) fn adapt(chunk: u64, steps: u64, seconds: f64) -> u64 {
    if seconds < 0.1 && steps == chunk {
        chunk * 2
    } else if seconds > 0.4 {
        (chunk / 2).max(1)
    } else {
        chunk
    }
}
