//! Rules over where the features of frozen encoders are kept.

use super::EncoderPool;
use super::error::code;
use super::validate::Rules;
use crate::message::PoolName;
use crate::store::{check_store_url, is_store_url};

impl Rules<'_> {
    /// Checks the folder of features of an encoder pool, and the object store that they are copied to.
    pub(super) fn feature_folders(&mut self, name: PoolName, pool: &EncoderPool) {
        let (dir, store) = (format!("pools.{name}.cache_dir"), format!("pools.{name}.cache_store"));
        if let Some(Err(reason)) = pool.cache_store.as_deref().map(check_store_url) {
            self.broken(true, code::OUT_OF_RANGE, &[&store], || {
                (format!("`{store}` {reason}"), "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            });
        }
        self.broken(pool.cache_store.is_some() && pool.cache_dir.is_none(), code::COMBINATION, &[&store, &dir], || {
            let message = format!("`{store}` without `{dir}`: there is no folder to copy features from");
            (message, "set `cache_dir` to a folder of this machine")
        });
        let is_url = pool.cache_dir.as_ref().and_then(|dir| dir.to_str()).is_some_and(is_store_url);
        self.broken(is_url, code::OUT_OF_RANGE, &[&dir], || {
            let message = format!("`{dir}` is the URL of an object store: features are read from a local folder");
            (message, "set `cache_store` to the URL, and `cache_dir` to a folder of this machine")
        });
    }
}
