//! Basic authentication with bcrypt hashes.
//!
//! bcrypt is slow on purpose. One password is checked at a time on a blocking thread, with a bounded queue and a cache of
//! results, so that a scraper costs one look-up and an attacker at most one CPU.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kstrobe_config::model::User;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// Cached results, separately for right and wrong passwords: wrong ones do not evict right ones.
const MAX_KNOWN: usize = 100;
/// Maximum requests waiting for a password check.
const MAX_WAITING: usize = 16;
/// Hash to check for an unknown user if no user has a valid hash.
const FALLBACK_HASH: &str = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Valid, with the user name.
    Welcome(String),
    /// Missing or wrong.
    Wrong,
    /// The queue is full.
    Busy,
}

/// Result cache and check queue.
pub struct Passwords {
    /// Key of the cache hashes, random per process.
    salt: [u8; 16],
    right: Mutex<Known>,
    wrong: Mutex<Known>,
    waiting: Arc<Semaphore>,
    looking: Arc<Semaphore>,
}

type Known = VecDeque<[u8; 32]>;

impl Default for Passwords {
    fn default() -> Passwords {
        let mut salt = [0; 16];
        // Two `RandomState`s are seeded by random numbers of the system.
        salt[..8].copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
        salt[8..].copy_from_slice(&RandomState::new().hash_one(1).to_le_bytes());
        Passwords {
            salt,
            right: Mutex::default(),
            wrong: Mutex::default(),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            looking: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Passwords {
    /// Checks the value of an `Authorization` header against `users`.
    pub async fn check(self: &Arc<Self>, users: &Arc<[User]>, header: Option<&[u8]>) -> Verdict {
        let Some((name, password)) = header.and_then(name_and_password) else { return Verdict::Wrong };
        let user = users.iter().find(|user| user.name.as_bytes() == name);
        // An unknown user costs as much time as a known one.
        let hash = user.or_else(|| users.iter().max_by_key(|user| cost(&user.hash.0)));
        let hash = hash.map_or(FALLBACK_HASH, |user| &user.hash.0).to_owned();
        let key = self.key(&name, &hash, &password);
        if let (Some(user), true) = (user, known(&self.right, &key)) {
            return Verdict::Welcome(user.name.clone());
        }
        if known(&self.wrong, &key) {
            return Verdict::Wrong;
        }
        let Ok(place) = self.waiting.clone().try_acquire_owned() else { return Verdict::Busy };
        // The semaphore is never closed.
        let Ok(turn) = self.looking.clone().acquire_owned().await else { return Verdict::Busy };
        let name = user.map(|user| user.name.clone());
        let (this, is_user) = (self.clone(), name.is_some());
        let right = tokio::task::spawn_blocking(move || {
            // The check completes and is cached even if the client disconnects.
            let _held = (place, turn);
            // The same password may have been checked while waiting.
            let right = known(&this.right, &key) || bcrypt::verify(&password, &hash).unwrap_or(false) && is_user;
            remember(if right { &this.right } else { &this.wrong }, key);
            right
        });
        match (right.await, name) {
            (Ok(true), Some(name)) => Verdict::Welcome(name),
            _ => Verdict::Wrong,
        }
    }

    fn key(&self, name: &[u8], hash: &str, password: &[u8]) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(self.salt);
        for part in [name, hash.as_bytes(), password] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }
}

fn known(known: &Mutex<Known>, key: &[u8; 32]) -> bool {
    known.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
}

fn remember(known: &Mutex<Known>, key: [u8; 32]) {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.contains(&key) {
        known.truncate(MAX_KNOWN - 1);
        known.push_front(key);
    }
}

/// bcrypt cost: the two digits in `$2y$10$...`.
fn cost(hash: &str) -> u32 {
    hash.get(4..6).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Decodes `Basic dXNlcjpwYXNz`.
fn name_and_password(header: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, rest) = header.split_at_checked(6)?;
    let text = scheme.eq_ignore_ascii_case(b"basic ").then(|| STANDARD.decode(rest.trim_ascii()).ok())??;
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some((text[..colon].to_vec(), text[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_config::model::Secret;

    fn user(name: &str, password: &str) -> User {
        User { name: name.into(), hash: Secret(bcrypt::hash(password, 4).unwrap()) }
    }

    fn header(name: &str, password: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))).into_bytes()
    }

    #[test]
    fn headers() {
        let pair = |header: &str| {
            let (name, password) = name_and_password(header.as_bytes())?;
            Some((String::from_utf8(name).unwrap(), String::from_utf8(password).unwrap()))
        };
        let some = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(pair("Basic YTpi"), some("a", "b"));
        assert_eq!(pair("basic  YTpiOmM="), some("a", "b:c"));
        assert_eq!(pair("Basic Og=="), some("", ""));
        for wrong in ["", "Basic", "Basic ", "Basic YQ==", "Basic !", "Bearer YTpi", "Basic YTpi YTpi"] {
            assert_eq!(pair(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn right_wrong_and_cached_passwords() {
        let passwords = Arc::new(Passwords::default());
        let users: Arc<[User]> = vec![user("alice", "secret"), user("bob", "other")].into();
        for round in 0..2 {
            for (name, password, right) in [
                ("alice", "secret", true),
                ("bob", "other", true),
                ("alice", "other", false),
                ("alice", "", false),
                ("eve", "secret", false),
                ("", "", false),
            ] {
                let verdict = passwords.check(&users, Some(&header(name, password))).await;
                let expected = if right { Verdict::Welcome(name.into()) } else { Verdict::Wrong };
                assert_eq!(verdict, expected, "{name} {password} {round}");
            }
        }
        assert_eq!((passwords.right.lock().unwrap().len(), passwords.wrong.lock().unwrap().len()), (2, 4));
        assert_eq!(passwords.check(&users, None).await, Verdict::Wrong);
        // A changed hash invalidates cached results.
        let changed: Arc<[User]> = vec![user("alice", "new")].into();
        assert_eq!(passwords.check(&changed, Some(&header("alice", "secret"))).await, Verdict::Wrong);
        assert_eq!(passwords.check(&changed, Some(&header("bob", "other"))).await, Verdict::Wrong);
    }

    #[tokio::test]
    async fn the_cache_is_bounded_and_wrong_passwords_do_not_evict_right_ones() {
        let passwords = Arc::new(Passwords::default());
        let users: Arc<[User]> = vec![user("a", "b")].into();
        assert_eq!(passwords.check(&users, Some(&header("a", "b"))).await, Verdict::Welcome("a".into()));
        for number in 0..150 {
            passwords.check(&users, Some(&header("a", &number.to_string()))).await;
        }
        assert_eq!(passwords.wrong.lock().unwrap().len(), MAX_KNOWN);
        assert_eq!(passwords.right.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn few_wait() {
        let passwords = Arc::new(Passwords::default());
        let users: Arc<[User]> = vec![user("a", "b")].into();
        assert_eq!(passwords.check(&users, Some(&header("a", "b"))).await, Verdict::Welcome("a".into()));
        let turn = passwords.looking.clone().acquire_owned().await.unwrap();
        let ask = |number: usize| {
            let (passwords, users) = (passwords.clone(), users.clone());
            tokio::spawn(async move { passwords.check(&users, Some(&header("a", &number.to_string()))).await })
        };
        let waiting: Vec<_> = (0..MAX_WAITING).map(ask).collect();
        while passwords.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(1000).await.unwrap(), Verdict::Busy);
        // Cached results bypass the queue.
        assert_eq!(passwords.check(&users, Some(&header("a", "b"))).await, Verdict::Welcome("a".into()));
        drop(turn);
        for waited in waiting {
            assert_eq!(waited.await.unwrap(), Verdict::Wrong);
        }
    }
}
