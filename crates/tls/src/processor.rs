//! What the cryptography asks of the processor. It is written for those since about 2015 and has no slow path: on others it
//! would end the agent.

/// An error names what the processor lacks, and what to do instead.
pub fn able(instead: &str) -> Result<(), String> {
    match lacking().as_slice() {
        [] => Ok(()),
        lacking => Err(format!("this processor lacks {}, which TLS needs: {instead}", lacking.join(", "))),
    }
}

fn lacking() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    use std::arch::is_x86_feature_detected as has;
    #[cfg(target_arch = "x86_64")]
    let needed = [
        ("adx", has!("adx")),
        ("aes", has!("aes")),
        ("avx", has!("avx")),
        ("avx2", has!("avx2")),
        ("bmi1", has!("bmi1")),
        ("bmi2", has!("bmi2")),
        ("pclmulqdq", has!("pclmulqdq")),
    ];
    #[cfg(target_arch = "aarch64")]
    use std::arch::is_aarch64_feature_detected as has;
    #[cfg(target_arch = "aarch64")]
    let needed = [("neon", has!("neon")), ("aes", has!("aes")), ("pmull", has!("pmull")), ("sha2", has!("sha2"))];
    needed.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect()
}
