//! Putting a file where readers see it: whole or not at all, and known to be stored before anyone is told.

use std::borrow::Borrow;

use arrow::array::RecordBatch;
use schemas::tables::Table;

use crate::{ClosedKey, Footer, HotKey, Lake, LakeError, Place, Version, encode, read, store::Created};

/// How publishing a hot file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The file is there, and it is ours.
    New,
    /// The same bytes of the same writer were there: our own try whose answer was lost.
    AlreadyMine,
    /// Another writer holds this offset: drop the buffer, read the head anew (D2).
    Taken,
}

impl Lake {
    /// Publishes the rows of one offset interval, create-if-absent. Sets the footer's offsets from `key` and the caller's `end`.
    ///
    /// Never overwrites and never picks another name. On [`Published::New`] the file and its entry are stored for good.
    pub fn publish_hot(
        &self,
        table: &'static Table,
        key: &HotKey,
        batches: impl IntoIterator<Item: Borrow<RecordBatch>>,
        mut footer: Footer,
    ) -> Result<Published, LakeError> {
        footer.start = Some(key.start);
        let bytes = encode::hot(table, batches, &mut footer)?;
        match self.store.create(&key.path(table), bytes)? {
            Created::New => Ok(Published::New),
            Created::There => {
                let theirs = read::footer(&self.place(&key.path(table)))?;
                let mine = theirs.writer_epoch == footer.writer_epoch
                    && theirs.content_hash == footer.content_hash
                    && theirs.end == footer.end;
                Ok(if mine { Published::AlreadyMine } else { Published::Taken })
            }
        }
    }

    /// Takes a hot file away, when retention says so. No error where it is not there.
    pub fn remove_hot(&self, table: &'static Table, key: &HotKey) -> Result<(), LakeError> {
        self.store.remove(&key.path(table))
    }

    /// Publishes one file of a closed hour over whatever was there. Returns its place.
    pub fn publish_closed(
        &self,
        table: &'static Table,
        key: ClosedKey,
        batches: &[RecordBatch],
        mut footer: Footer,
    ) -> Result<Place, LakeError> {
        let bytes = encode::file(table, batches, &mut footer)?;
        self.store.replace(&key.path(table), bytes)?;
        Ok(self.place(&key.path(table)))
    }

    /// The same of batches that are made one after the other ([`encode::stream`]). Returns the footer as it was written, and
    /// the file's bytes.
    pub fn publish_closed_from<E: From<LakeError>>(
        &self,
        table: &'static Table,
        key: ClosedKey,
        batches: impl IntoIterator<Item = Result<RecordBatch, E>>,
        mut footer: Footer,
    ) -> Result<(Footer, u64), E> {
        let bytes = encode::stream(table, batches, &mut footer)?;
        let size = bytes.len() as u64;
        self.store.replace(&key.path(table), bytes)?;
        Ok((footer, size))
    }

    /// Publishes one file of a closed hour over the one of version `over` (none: where there was none). Returns the new version;
    /// none where another writer has been there since, and nothing was written.
    ///
    /// On a local disk it is the writers' lock that keeps them apart ([`Lake::try_turn`]), and the version says nothing.
    pub fn publish_closed_over(
        &self,
        table: &'static Table,
        key: ClosedKey,
        batches: &[RecordBatch],
        mut footer: Footer,
        over: Option<&Version>,
    ) -> Result<Option<Version>, LakeError> {
        let bytes = encode::file(table, batches, &mut footer)?;
        self.store.replace_if(&key.path(table), bytes, over)
    }

    /// Takes one file of a closed hour away, where new inputs or retention leave it without rows. No error where it is not there.
    pub fn remove_closed(&self, table: &'static Table, key: ClosedKey) -> Result<(), LakeError> {
        self.store.remove(&key.path(table))
    }
}
