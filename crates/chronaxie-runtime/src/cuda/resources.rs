//! What the assembler says of each kernel, read from the compiler's log (`--ptxas-options=-v`).

/// Registers, spills and memory of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryResources {
    /// The kernel's name.
    pub entry: String,
    /// Registers a thread.
    pub registers: u64,
    /// Bytes a thread stores because registers did not suffice.
    pub spill_store_bytes: u64,
    /// Bytes a thread loads back.
    pub spill_load_bytes: u64,
    /// Stack frame of a thread, bytes (local arrays; spills are in it too).
    pub stack_bytes: u64,
    /// Static shared memory of a block, bytes.
    pub shared_bytes: u64,
    /// Constant memory, bytes, the parameters included.
    pub constant_bytes: u64,
}

/// The number before `unit` in a list such as `Used 28 registers, 128 bytes smem, 364 bytes cmem[0]`, summed.
fn amount(line: &str, unit: &str) -> u64 {
    line.split(',')
        .filter_map(|part| {
            let part = part.trim().trim_start_matches("Used ").trim_start_matches("used ");
            let (number, rest) = part.split_once(' ')?;
            rest.starts_with(unit).then(|| number.parse::<u64>().ok()).flatten()
        })
        .sum()
}

/// The kernels and the functions that were not inlined, in the order of the log.
///
/// NVRTC 12 writes `ptxas         .` before a continued line, NVRTC 13 too; nvcc writes blanks. Warnings stand between.
pub(super) fn parse_log(log: &str) -> (Vec<EntryResources>, Vec<EntryResources>) {
    let (mut entries, mut functions): (Vec<EntryResources>, Vec<EntryResources>) = (Vec::new(), Vec::new());
    // Whose properties the next line tells: an entry's or a function's.
    let mut of_entry = false;
    for line in log.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '").map(|(_, r)| r) {
            let entry = rest.split('\'').next().unwrap_or_default().to_string();
            entries.push(EntryResources { entry, ..Default::default() });
            of_entry = true;
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            let name = name.trim();
            of_entry = entries.last().is_some_and(|e| e.entry == name);
            if !of_entry {
                functions.push(EntryResources { entry: name.to_string(), ..Default::default() });
            }
        } else if line.contains("bytes stack frame") {
            let line = line.trim_start_matches("ptxas").trim_start_matches([' ', '.']);
            let target = if of_entry { entries.last_mut() } else { functions.last_mut() };
            if let Some(r) = target {
                r.stack_bytes = amount(line, "bytes stack frame");
                r.spill_store_bytes = amount(line, "bytes spill stores");
                r.spill_load_bytes = amount(line, "bytes spill loads");
            }
        } else if let Some((_, used)) = line.split_once(": Used ")
            && let Some(r) = entries.last_mut()
        {
            r.registers = amount(used, "registers");
            r.shared_bytes = amount(used, "bytes smem");
            r.constant_bytes = amount(used, "bytes cmem");
        }
    }
    (entries, functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_compilers_logs_are_read() {
        let twelve = "\
layers/x.cu(2): warning #177-D: variable \"a\" was declared but never referenced
ptxas info    : 8 bytes gmem, 16 bytes cmem[4]
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
ptxas         .     64 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 28 registers, 64 bytes cumulative stack size, 128 bytes smem, 364 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Function properties for _Z1fILi16EEfPfi
ptxas         .     0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads";
        let (entries, functions) = parse_log(twelve);
        let k = EntryResources {
            entry: "k".into(),
            registers: 28,
            spill_store_bytes: 12,
            spill_load_bytes: 20,
            stack_bytes: 64,
            shared_bytes: 128,
            constant_bytes: 372,
        };
        assert_eq!(entries, [k]);
        assert_eq!((functions.len(), functions[0].spill_store_bytes), (1, 4));
        let thirteen = "\
ptxas info    : Compiling entry function 'k2' for 'sm_90a'
ptxas info    : Function properties for k2
    256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 256 bytes cumulative stack size
ptxas info    : Compile time = 56.947 ms";
        let (entries, functions) = parse_log(thirteen);
        assert_eq!((entries[0].registers, entries[0].stack_bytes, entries[0].shared_bytes), (32, 256, 0));
        assert!(functions.is_empty());
        assert_eq!(parse_log(""), (vec![], vec![]));
    }
}
