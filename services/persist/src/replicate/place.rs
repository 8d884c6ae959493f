// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The object store of a replica: objects by name, with bounded sizes and times.
//!
//! - **Layout** `log/NUMBER` segments · `parts/NUMBER-WRITER-SERIAL` parts. Other names are another program's: never read or removed
//! - **Rule** a segment is created, never replaced: of two writers that create one number, one succeeds. All stores of the crate
//!   `object_store` have that (S3 and Azure by If-None-Match, GCS by generation 0, folders by a hard link)
//! - **Rule** no call outlives the replicator: it ends when [`Stop`] is set, or when whoever it asks meanwhile does not want to wait longer
//! - **Trust** the store may send more than was asked for: what is taken is bounded

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt, ObjectStoreScheme,
    PutMode, PutOptions, PutPayload, RetryConfig,
};
use tokio::sync::Notify;
use url::Url;

use super::format::WriterId;
use crate::error::{Error, Result};
use crate::layout::COUNTED_MAX;

/// Objects that are fetched or removed at once.
const AT_ONCE: usize = 16;
/// Bytes that whole objects fetched at once may have together.
const BYTES_AT_ONCE: u64 = 32 << 20;
/// Names that a listing may have: 800 MB of memory.
const NAMES_MAX: usize = 50_000_000;
/// How often somebody is asked if a call is to go on.
const ASK_TIME: Duration = Duration::from_millis(100);
/// A request ends after this.
const REQUEST_TIME: Duration = Duration::from_secs(120);
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long threads of the client may take to end.
const END_TIME: Duration = Duration::from_secs(5);
/// The client tries a request again for so long; after that, the replicator decides.
const RETRY_TIME: Duration = Duration::from_secs(10);

/// Says if a call is to go on; asked some ten times a second while one waits.
pub(crate) type GoesOn = Box<dyn Fn() -> bool + Send + Sync>;

/// Ends calls to the store.
#[derive(Default)]
pub(crate) struct Stop {
    flag: AtomicBool,
    notify: Notify,
    goes_on: Option<GoesOn>,
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop").field("flag", &self.flag).finish_non_exhaustive()
    }
}

impl Stop {
    /// One that `goes_on` sets by false.
    pub fn asking(goes_on: GoesOn) -> Stop {
        Stop { goes_on: Some(goes_on), ..Stop::default() }
    }

    /// Asks now, too. False: everything is to end.
    pub fn goes_on(&self) -> bool {
        if self.goes_on.as_ref().is_some_and(|goes_on| !goes_on()) {
            self.set();
        }
        !self.is_set()
    }

    pub fn set(&self) {
        self.flag.store(true, Ordering::Release);
        self.notify.notify_waiters();
        self.notify.notify_one(); // if nobody waits yet
    }

    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    async fn wait(&self) {
        while self.goes_on() {
            if self.goes_on.is_none() {
                self.notify.notified().await;
            } else {
                tokio::time::sleep(ASK_TIME).await;
            }
        }
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Place {
    store: Box<dyn ObjectStore>,
    prefix: Path,
    /// For messages: without a password.
    name: String,
    /// None: it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
    pub stop: Arc<Stop>,
}

/// Result of creating an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Created {
    Now,
    /// There is an object of this name.
    Before,
}

/// A segment in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub number: u64,
    pub bytes: u64,
}

/// An object that a store does not give, for a reason of its own.
fn is_of_store(error: &object_store::Error) -> bool {
    use object_store::Error as Store;
    matches!(
        error,
        Store::Generic { .. }
            | Store::JoinError { .. }
            | Store::Unauthenticated { .. }
            | Store::PermissionDenied { .. }
            | Store::NotFound { .. }
    )
}

pub(crate) fn segment_name(number: u64) -> String {
    format!("log/{number:020}")
}

pub(crate) fn part_name(number: u64, writer: &WriterId, serial: u64) -> String {
    let writer = u128::from_be_bytes(*writer);
    format!("parts/{number:020}-{writer:032x}-{serial:016x}")
}

fn digits(text: &str, count: usize, radix: u32) -> Option<u64> {
    let shaped = text.len() == count
        && text.bytes().all(|one| char::from(one).is_digit(radix) && !one.is_ascii_uppercase());
    if shaped { u64::from_str_radix(text, radix).ok() } else { None }
}

/// The number in a name of `folder`; None: the name is not one of ours.
fn number_of(folder: &str, file: &str) -> Option<u64> {
    let counted = |number: &u64| (1..COUNTED_MAX).contains(number);
    if folder == "log" {
        return digits(file, 20, 10).filter(counted);
    }
    let mut pieces = file.split('-');
    let number = digits(pieces.next()?, 20, 10).filter(counted)?;
    let writer = pieces.next()?;
    digits(writer.get(..16)?, 16, 16)?;
    digits(writer.get(16..)?, 16, 16)?;
    digits(pieces.next()?, 16, 16)?;
    pieces.next().is_none().then_some(number)
}

impl Place {
    /// Finds the store that a URL names: `s3://BUCKET/PATH`, `gs://`, `az://` (settings and keys come from the environment, as the
    /// providers' own tools read it), `file://` or a path of a folder, which is made if `make`. Calls end by `stop`.
    pub fn of(url: &str, make: bool, stop: Stop) -> Result<Place> {
        let odd = |why: &str| Error::Argument {
            what: format!(
                "{url}: {why}; a replica's place is s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or a folder"
            ),
        };
        let (parsed, folder) = match Url::parse(url) {
            Ok(parsed) if parsed.scheme() == "file" => {
                let folder = parsed.to_file_path().map_err(|()| odd("it names no folder here"))?;
                (parsed, Some(folder))
            }
            Ok(parsed) => (parsed, None),
            Err(_) if !url.is_empty() && !url.contains("://") => {
                let folder = std::path::absolute(url).map_err(|error| odd(&error.to_string()))?;
                (Url::from_file_path(&folder).map_err(|()| odd("it names no folder"))?, Some(folder))
            }
            Err(error) => return Err(odd(&error.to_string())),
        };
        let mut name = parsed.clone();
        if name.password().is_some() {
            let _ = name.set_password(Some("…")); // fails for URLs without a host, which have none
        }
        let name = if folder.is_some() { url.to_owned() } else { name.to_string() };
        let refused = |error: object_store::Error| Error::Replica {
            url: name.clone(),
            what: format!("cannot be used: {error}"),
        };
        let retry = RetryConfig { max_retries: 3, retry_timeout: RETRY_TIME, ..RetryConfig::default() };
        let client = ClientOptions::new().with_timeout(REQUEST_TIME).with_connect_timeout(CONNECT_TIME);
        let (scheme, path) = ObjectStoreScheme::parse(&parsed).map_err(|error| odd(&error.to_string()))?;
        // The environment may allow plain HTTP: options replace what it says.
        let plain = match scheme {
            ObjectStoreScheme::AmazonS3 => Some("AWS_ALLOW_HTTP"),
            ObjectStoreScheme::GoogleCloudStorage => Some("GOOGLE_ALLOW_HTTP"),
            ObjectStoreScheme::MicrosoftAzure => Some("AZURE_ALLOW_HTTP"),
            _ => None,
        };
        let allows = |value: String| value.eq_ignore_ascii_case("true") || value == "1";
        let client = client.with_allow_http(plain.is_some_and(|name| std::env::var(name).is_ok_and(allows)));
        let (store, prefix): (Box<dyn ObjectStore>, Path) = match (scheme, &folder) {
            (_, Some(folder)) => {
                let failed = crate::fresh::file_error("use the folder of the replica", folder);
                if make {
                    std::fs::create_dir_all(folder).map_err(failed)?
                } else {
                    std::fs::read_dir(folder).map(drop).map_err(failed)?
                };
                let store = LocalFileSystem::new_with_prefix(folder).map_err(refused)?.with_fsync(true);
                (Box::new(store), Path::default())
            }
            (ObjectStoreScheme::AmazonS3, _) => {
                let builder = AmazonS3Builder::from_env().with_client_options(client);
                (
                    Box::new(builder.with_url(parsed.as_str()).with_retry(retry).build().map_err(refused)?),
                    path,
                )
            }
            (ObjectStoreScheme::GoogleCloudStorage, _) => {
                let builder = GoogleCloudStorageBuilder::from_env().with_client_options(client);
                (
                    Box::new(builder.with_url(parsed.as_str()).with_retry(retry).build().map_err(refused)?),
                    path,
                )
            }
            (ObjectStoreScheme::MicrosoftAzure, _) => {
                let builder = MicrosoftAzureBuilder::from_env().with_client_options(client);
                (
                    Box::new(builder.with_url(parsed.as_str()).with_retry(retry).build().map_err(refused)?),
                    path,
                )
            }
            _ => return Err(odd("no store of this kind has what a replica needs")),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
                Error::Argument { what: format!("the client of {url} does not start: {error}") }
            })?;
        Ok(Place { store, prefix, name, runtime: Some(runtime), stop: Arc::new(stop) })
    }

    /// The URL, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An error about this replica.
    pub fn error(&self, what: impl Into<String>) -> Error {
        Error::Replica { url: self.name.clone(), what: what.into() }
    }

    fn failed(&self, action: &str, name: &str) -> impl Fn(object_store::Error) -> Error {
        let (url, about) = (self.name.clone(), format!("{action} {name}"));
        move |error| {
            let (url, what) = (url.clone(), format!("{about}: {error}"));
            if is_of_store(&error) { Error::ReplicaStore { url, what } } else { Error::Replica { url, what } }
        }
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, piece| path.join(piece))
    }

    /// Runs a call to its end, or until the replicator ends.
    fn run<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let stopped = || Error::Aborted("replication was ended".to_owned());
        let Some(runtime) = &self.runtime else { return Err(stopped()) };
        runtime.block_on(async {
            tokio::select! {
                done = call => done,
                () = self.stop.wait() => Err(stopped()),
            }
        })
    }

    /// Waits, unless the replicator ends before.
    pub fn pause(&self, time: Duration) -> Result<()> {
        self.run(async {
            tokio::time::sleep(time).await;
            Ok(())
        })
    }

    /// Creates an object; one that is there stays as it is.
    pub fn create(&self, name: &str, bytes: &PutPayload) -> Result<Created> {
        let failed = self.failed("write", name);
        let path = self.path(name);
        self.run(async {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match self.store.put_opts(&path, bytes.clone(), options).await {
                Ok(_) => Ok(Created::Now),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    Ok(Created::Before)
                }
                Err(error) => Err(failed(error)),
            }
        })
    }

    /// Writes an object whose name only this writer uses.
    pub fn put(&self, name: &str, bytes: &PutPayload) -> Result<()> {
        let failed = self.failed("write", name);
        let path = self.path(name);
        self.run(async { self.store.put(&path, bytes.clone()).await.map(drop).map_err(failed) })
    }

    async fn fetch(&self, name: &str, range: Option<u64>, most: u64) -> Result<Option<Vec<u8>>> {
        let failed = self.failed("read", name);
        let options =
            GetOptions { range: range.map(|end| GetRange::Bounded(0..end)), ..GetOptions::default() };
        let found = match self.store.get_opts(&self.path(name), options).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let sent = found.range.end.saturating_sub(found.range.start);
        if let GetResultPayload::File(..) = found.payload {
            // As one piece: the stream of a file has pieces of 8 KiB.
            if sent > most {
                return Err(self.error(format!("{name} is larger than it can be")));
            }
            return Ok(Some(found.bytes().await.map_err(failed)?.into()));
        }
        let mut bytes = Vec::with_capacity(sent.min(most) as usize);
        let mut body = found.into_stream();
        while let Some(piece) = body.try_next().await.map_err(&failed)? {
            if bytes.len() as u64 + piece.len() as u64 > most {
                return Err(self.error(format!("{name} is larger than it can be")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(bytes))
    }

    /// The first bytes of an object, or all of it if it is shorter; None: there is no such object.
    pub fn start_of(&self, name: &str, bytes: u64) -> Result<Option<Vec<u8>>> {
        self.run(self.fetch(name, Some(bytes), bytes))
    }

    /// As [`Place::start_of`], of many objects, some at once; an error is of its object only.
    pub fn starts_of(&self, names: &[String], bytes: u64) -> Result<Vec<Result<Option<Vec<u8>>>>> {
        self.run(async {
            let calls = names.iter().map(|name| self.fetch(name, Some(bytes), bytes));
            Ok(stream::iter(calls).buffered(AT_ONCE).collect().await)
        })
    }

    /// Whole objects, some at once, in order; `each` is called with each. They are `most` bytes long, at most.
    pub fn each_of(
        &self,
        names: &[String],
        most: u64,
        mut each: impl FnMut(usize, Option<Vec<u8>>) -> Result<()>,
    ) -> Result<()> {
        let at_once = (BYTES_AT_ONCE / most.max(1)).clamp(1, AT_ONCE as u64) as usize;
        self.run(async {
            let calls = names.iter().map(|name| self.fetch(name, None, most));
            let mut found = std::pin::pin!(stream::iter(calls).buffered(at_once).enumerate());
            while let Some((at, object)) = found.next().await {
                each(at, object?)?;
            }
            Ok(())
        })
    }

    /// Calls `each` for our objects in `folder` (`log` or `parts`), in no order.
    fn list(&self, folder: &str, mut each: impl FnMut(u64, &str, u64)) -> Result<()> {
        let failed = self.failed("list", folder);
        let path = self.path(folder);
        self.run(async {
            let mut count = 0;
            let mut names = self.store.list(Some(&path));
            while let Some(about) = names.try_next().await.map_err(&failed)? {
                let Some(file) = about.location.filename() else { continue };
                let ours = || about.location == self.path(&format!("{folder}/{file}"));
                if let Some(number) = number_of(folder, file).filter(|_| ours()) {
                    each(number, file, about.size);
                    count += 1;
                }
                if count > NAMES_MAX {
                    return Err(self.error(format!("{folder} has more objects than there can be")));
                }
            }
            Ok(())
        })
    }

    /// Our segments, by number.
    pub fn list_segments(&self) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        self.list("log", |number, _, bytes| found.push(Listed { number, bytes }))?;
        found.sort_unstable_by_key(|one| one.number);
        found.dedup_by_key(|one| one.number);
        Ok(found)
    }

    /// Names of the parts of segments before `number`, and bytes of all parts.
    pub fn list_parts(&self, number: u64) -> Result<(Vec<String>, u64)> {
        let (mut before, mut sum) = (Vec::new(), 0);
        self.list("parts", |of, file, bytes| {
            sum += bytes;
            if of < number {
                before.push(format!("parts/{file}"));
            }
        })?;
        Ok((before, sum))
    }

    /// Removes objects; those that are gone already do not matter.
    pub fn remove(&self, names: &[String]) -> Result<()> {
        self.run(async {
            let calls = names.iter().map(|name| async move {
                match self.store.delete(&self.path(name)).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                    Err(error) => Err(self.failed("remove", name)(error)),
                }
            });
            stream::iter(calls).buffer_unordered(AT_ONCE).try_collect().await
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A look-up of a name that hangs is not waited for longer. Not `shutdown_background`: it detaches threads that are just ending,
        // which reads freed memory in some versions of glibc (its bug 19951).
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(END_TIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_ours() {
        assert_eq!(number_of("log", segment_name(12).strip_prefix("log/").unwrap()), Some(12));
        let part = part_name(7, &[0xab; 16], 3);
        assert_eq!(number_of("parts", part.strip_prefix("parts/").unwrap()), Some(7));
        for other in ["", "12", "0000000000000000001x", "+0000000000000000001", "00000000000000000001.tmp"] {
            assert_eq!((number_of("log", other), number_of("parts", other)), (None, None), "{other}");
        }
        let file = part.strip_prefix("parts/").unwrap();
        for other in
            [file.to_uppercase(), format!("{file}-"), file.replace("ab", "ag"), file.replacen('-', "é", 1)]
        {
            assert_eq!(number_of("parts", &other), None, "{other}");
        }
    }

    #[test]
    fn a_folder_creates_once_and_lists_what_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(folder.path().to_str().unwrap(), true, Stop::default()).unwrap();
        assert_eq!(place.create(&segment_name(2), &PutPayload::from_static(b"first")).unwrap(), Created::Now);
        assert_eq!(
            place.create(&segment_name(2), &PutPayload::from_static(b"second")).unwrap(),
            Created::Before
        );
        std::fs::write(folder.path().join("log/theirs"), "theirs").unwrap();
        std::fs::create_dir_all(folder.path().join("log/deeper")).unwrap();
        std::fs::write(folder.path().join("log/deeper").join(format!("{:020}", 9)), "theirs").unwrap();
        assert_eq!(place.list_segments().unwrap(), [Listed { number: 2, bytes: 5 }]);
        place.put(&part_name(2, &[3; 16], 1), &PutPayload::from_static(b"part")).unwrap();
        assert_eq!(place.list_parts(2).unwrap(), (Vec::new(), 4));
        assert_eq!(place.list_parts(3).unwrap(), (vec![part_name(2, &[3; 16], 1)], 4));
        assert_eq!(place.start_of(&segment_name(2), 3).unwrap().as_deref(), Some(&b"fir"[..]));
        assert_eq!(place.start_of(&segment_name(2), 300).unwrap().as_deref(), Some(&b"first"[..]));
        assert_eq!(place.start_of(&segment_name(3), 3).unwrap(), None);
        let large = place.each_of(&[segment_name(2)], 4, |_, _| Ok(()));
        assert!(matches!(large, Err(Error::Replica { .. })), "{large:?}");
        place.remove(&[segment_name(2), segment_name(3)]).unwrap();
        assert_eq!(place.list_segments().unwrap(), []);
        assert!(folder.path().join("log/theirs").exists());
        place.stop.set();
        assert!(matches!(place.pause(Duration::from_secs(60)), Err(Error::Aborted(_))));
        let asked = std::sync::atomic::AtomicU32::new(0);
        let goes_on = move || asked.fetch_add(1, Ordering::Relaxed) < 3;
        let place =
            Place::of(folder.path().to_str().unwrap(), true, Stop::asking(Box::new(goes_on))).unwrap();
        assert!(matches!(place.pause(Duration::from_secs(60)), Err(Error::Aborted(_))));
    }

    #[test]
    fn urls_that_name_no_place_are_refused() {
        for url in ["", "http://host/path", "memory:///x", "s3:", "ftp://x/y"] {
            assert!(Place::of(url, false, Stop::default()).is_err(), "{url}");
        }
    }
}
