use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use url::Url;

use crate::PipelineError;

/// Where artifacts live: a folder, or memory in tests.
///
/// Every write is atomic: readers see the whole object or none. Cloning is cheap and gives the same store.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    root: Option<Arc<std::path::Path>>,
    cache: Arc<std::path::Path>,
    uri: String,
}

impl Store {
    /// Opens a store by address, and makes its folder if there is none.
    ///
    /// An address is a folder, relative or not, a `file://` URL, or `memory://`, which is a new, empty store
    /// each time.
    ///
    /// # Errors
    /// [`PipelineError::Scheme`] and [`PipelineError::Address`] for an address this build cannot serve;
    /// [`PipelineError::NotWritable`] if the folder cannot be made or written.
    pub fn open(uri: &str) -> Result<Self, PipelineError> {
        let Some(root) = local_root(uri)? else { return Ok(Self::memory()) };
        let not_writable = |source| PipelineError::NotWritable { uri: uri.to_owned(), source };
        fs_err::create_dir_all(&root).map_err(not_writable)?;
        // A folder that is there may still be read-only; better to know before hours of work.
        tempfile::Builder::new().prefix(".envace-probe").tempfile_in(&root).map_err(not_writable)?;
        Self::local(uri, root)
    }

    /// Opens a store that must be there, for reading; nothing is written.
    ///
    /// # Errors
    /// [`PipelineError::NoStore`] if the folder does not exist; otherwise as [`Store::open`].
    pub fn open_existing(uri: &str) -> Result<Self, PipelineError> {
        match local_root(uri)? {
            Some(root) if !root.is_dir() => Err(PipelineError::NoStore { uri: uri.to_owned() }),
            Some(root) => Self::local(uri, root),
            None => Ok(Self::memory()),
        }
    }

    /// A new, empty store in memory.
    pub fn memory() -> Self {
        Self {
            inner: Arc::new(InMemory::new()),
            root: None,
            cache: default_cache(),
            uri: "memory://".to_owned(),
        }
    }

    fn local(uri: &str, root: PathBuf) -> Result<Self, PipelineError> {
        let inner = LocalFileSystem::new_with_prefix(&root)
            .map_err(|source| PipelineError::object("open", &Path::default(), source))?;
        let cache = default_cache();
        Ok(Self { inner: Arc::new(inner), root: Some(root.into()), cache, uri: uri.to_owned() })
    }

    /// The same store behind another layer, such as one that retries or, in tests, fails.
    #[must_use]
    pub fn wrap(self, layer: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>) -> Self {
        Self { inner: layer(self.inner), ..self }
    }

    /// The same store with another folder for local copies of checkpoints.
    ///
    /// Only stores that are no folder need it; the default is `envace-cache` among temporary files.
    #[must_use]
    pub fn with_cache(self, folder: impl Into<PathBuf>) -> Self {
        Self { cache: folder.into().into(), ..self }
    }

    /// The folder for local copies of checkpoints.
    pub fn cache(&self) -> &std::path::Path {
        &self.cache
    }

    /// The address it was opened by.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The store itself, for readers such as a SQL engine. Paths in it begin at the store's root.
    pub fn object_store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.inner)
    }

    /// The folder of a local store.
    pub fn root(&self) -> Option<&std::path::Path> {
        self.root.as_deref()
    }

    /// Where an object lies in a local store; `None` for other stores.
    pub fn local_path(&self, path: &Path) -> Option<PathBuf> {
        self.root().map(|root| path.parts().fold(root.to_owned(), |folder, part| folder.join(part.as_ref())))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if it is not there or cannot be read.
    pub async fn get(&self, path: &Path) -> Result<Bytes, PipelineError> {
        let failed = |source| PipelineError::object("read", path, source);
        self.inner.get(path).await.map_err(failed)?.bytes().await.map_err(failed)
    }

    /// Reads an object; `None` if it is not there.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if it cannot be read.
    pub async fn get_if_present(&self, path: &Path) -> Result<Option<Bytes>, PipelineError> {
        let failed = |source| PipelineError::object("read", path, source);
        match self.inner.get(path).await {
            Ok(found) => found.bytes().await.map(Some).map_err(failed),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }

    /// Size of an object in bytes; `None` if it is not there.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if that cannot be found out.
    pub async fn size(&self, path: &Path) -> Result<Option<u64>, PipelineError> {
        match self.inner.head(path).await {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(PipelineError::object("read", path, source)),
        }
    }

    /// Whether an object is there.
    ///
    /// # Errors
    /// As [`Store::size`].
    pub async fn exists(&self, path: &Path) -> Result<bool, PipelineError> {
        Ok(self.size(path).await?.is_some())
    }

    /// Writes an object, in place of what may be there.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if it cannot be written.
    pub async fn put(&self, path: &Path, bytes: impl Into<Bytes>) -> Result<(), PipelineError> {
        let failed = |source| PipelineError::object("write", path, source);
        self.inner.put(path, bytes.into().into()).await.map_err(failed)?;
        Ok(())
    }

    /// Writes an object unless there is one; returns whether it did. What it wrote survives a loss of power.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if it cannot be written.
    pub async fn put_if_absent(&self, path: &Path, bytes: impl Into<Bytes>) -> Result<bool, PipelineError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.inner.put_opts(path, bytes.into().into(), options).await {
            Ok(_) => self.sync(path).map(|()| true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(source) => Err(PipelineError::object("write", path, source)),
        }
    }

    /// Deletes an object; it is no error if there is none.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if it cannot be deleted.
    pub async fn delete(&self, path: &Path) -> Result<(), PipelineError> {
        match self.inner.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(PipelineError::object("delete", path, source)),
        }
    }

    /// Deletes all objects under a folder and returns how many there were.
    pub(crate) async fn delete_all(&self, prefix: &Path) -> Result<usize, PipelineError> {
        let found = self.list(prefix).await?;
        for (path, _) in &found {
            self.delete(path).await?;
        }
        if let Some(folder) = self.local_path(prefix).filter(|folder| folder.is_dir()) {
            // Only empty folders are left; another process may be filling one of them again.
            remove_empty(&folder);
        }
        Ok(found.len())
    }

    /// All objects under a folder with their sizes in bytes, sorted by path.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if they cannot be listed.
    pub async fn list(&self, prefix: &Path) -> Result<Vec<(Path, u64)>, PipelineError> {
        let listed: Result<Vec<_>, _> = self.inner.list(Some(prefix)).try_collect().await;
        let listed = listed.map_err(|source| PipelineError::object("list", prefix, source))?;
        let mut found: Vec<_> = listed.into_iter().map(|object| (object.location, object.size)).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Makes a file of a local store survive a loss of power; other stores see to that themselves.
    pub(crate) fn sync(&self, path: &Path) -> Result<(), PipelineError> {
        let Some(file) = self.local_path(path) else { return Ok(()) };
        sync_file(&file)?;
        file.parent().map_or(Ok(()), sync_folder)
    }
}

fn default_cache() -> Arc<std::path::Path> {
    std::env::temp_dir().join("envace-cache").into()
}

/// The folder an address means; `None` for memory.
fn local_root(uri: &str) -> Result<Option<PathBuf>, PipelineError> {
    let address = || PipelineError::Address { uri: uri.to_owned() };
    let path = match uri.split_once("://") {
        Some(("memory", _)) => return Ok(None),
        Some(("file", _)) => {
            Url::parse(uri).map_err(|_| address())?.to_file_path().map_err(|()| address())?
        }
        Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) => {
            return Err(PipelineError::Scheme { scheme: scheme.to_owned(), uri: uri.to_owned() });
        }
        _ => PathBuf::from(uri),
    };
    if path.as_os_str().is_empty() {
        return Err(address());
    }
    std::path::absolute(&path).map(Some).map_err(|source| PipelineError::File { path, source })
}

fn sync_file(path: &std::path::Path) -> Result<(), PipelineError> {
    let synced = fs_err::File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|source| PipelineError::File { path: path.to_owned(), source })
}

#[cfg(unix)]
fn sync_folder(path: &std::path::Path) -> Result<(), PipelineError> {
    match sync_file(path) {
        // Some network file systems keep folders without being asked, and refuse to be asked.
        Err(PipelineError::File { source, .. })
            if matches!(
                source.kind(),
                std::io::ErrorKind::InvalidInput | std::io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// Folders cannot be opened as files here; the system keeps their entries by itself.
#[cfg(not(unix))]
fn sync_folder(_: &std::path::Path) -> Result<(), PipelineError> {
    Ok(())
}

/// Removes a folder if nothing but empty folders is in it. Failures leave a folder behind, which harms nothing.
fn remove_empty(folder: &std::path::Path) {
    for entry in fs_err::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs_err::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<Store, PipelineError>) -> (String, String) {
        let error = result.unwrap_err();
        (error.to_string(), error.hint().unwrap())
    }

    #[test]
    fn other_schemes_are_refused_with_what_they_need() {
        let (error, hint) = message(Store::open("s3://bucket/path"));
        assert_eq!(error, "store scheme `s3` is not built in: s3://bucket/path");
        assert!(hint.contains("`aws` feature"), "{hint}");
        assert_eq!(message(Store::open("")).0, "store address cannot be read: ");
        assert_eq!(message(Store::open("file://host/x")).0, "store address cannot be read: file://host/x");
    }

    #[test]
    fn a_store_that_cannot_be_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs_err::write(&file, "").unwrap();
        let uri = file.join("store").display().to_string();
        let (error, hint) = message(Store::open(&uri));
        assert_eq!(error, format!("store cannot be written: {uri}"));
        assert_eq!(hint, "give a folder you may write to");
        let missing = folder.path().join("none").display().to_string();
        assert_eq!(message(Store::open_existing(&missing)).0, format!("there is no store at: {missing}"));
        assert!(!folder.path().join("none").exists(), "reading must not make a store");
    }

    #[tokio::test]
    async fn objects_are_written_once_or_over() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a b%20é");
        let uri = Url::from_directory_path(&inside).unwrap();
        for store in [Store::memory(), Store::open(uri.as_str()).unwrap()] {
            let path = Path::from("a/b=1/c.json");
            assert!(store.put_if_absent(&path, "one").await.unwrap());
            assert!(!store.put_if_absent(&path, "two").await.unwrap());
            assert_eq!(store.get(&path).await.unwrap(), "one");
            store.put(&path, "three").await.unwrap();
            assert_eq!(store.get_if_present(&path).await.unwrap().unwrap(), "three");
            assert_eq!(store.list(&Path::from("a")).await.unwrap(), [(path.clone(), 5)]);
            assert_eq!(store.delete_all(&Path::from("a")).await.unwrap(), 1);
            assert!(!store.exists(&path).await.unwrap());
            store.delete(&path).await.unwrap();
            assert!(store.list(&Path::from("a")).await.unwrap().is_empty());
        }
        assert_eq!(fs_err::read_dir(&inside).unwrap().count(), 0, "no empty folder stays");
    }
}
