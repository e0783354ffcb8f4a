//! Keys and values of a model's two groups of layers: their shapes, and stores that fit them.

use kernels::{KvShape, KvType};

use super::batch::KvRoom;
use super::foreign_kv;
use crate::forward::{KvBlocks, KvStore, WindowShape};
use crate::{Config, Result};

#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShapes {
    /// Of the layers that see every position.
    pub all: KvShape,
    pub window: Option<WindowShape>,
}

impl KvShapes {
    pub fn new(config: &Config, ty: KvType) -> Self {
        let shape = |layers| KvShape {
            layers,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            ty,
        };
        let Some(window) = &config.window else {
            return Self {
                all: shape(config.layers),
                window: None,
            };
        };
        let seeing_all = window.seeing_all(config.layers);
        Self {
            all: shape(seeing_all),
            window: Some(WindowShape {
                kv: shape(config.layers - seeing_all),
                tokens: window.tokens,
            }),
        }
    }

    /// A store whose groups `new` makes.
    pub fn store(
        &self,
        blocks: usize,
        window_blocks: usize,
        new: impl Fn(KvShape, usize) -> Result<KvBlocks>,
    ) -> Result<KvStore> {
        Ok(KvStore {
            all: new(self.all, blocks)?,
            window: match self.window {
                Some(window) => Some(new(window.kv, window_blocks)?),
                None => None,
            },
        })
    }

    /// The room of a store, which must have been made for this model.
    pub fn room(&self, kv: &KvStore) -> Result<KvRoom> {
        let window = kv.window.as_ref();
        let fits = kv.all.shape() == self.all
            && window.map(KvBlocks::shape) == self.window.map(|window| window.kv);
        match fits {
            true => Ok(KvRoom {
                blocks: kv.all.blocks(),
                window_blocks: window.map_or(0, KvBlocks::blocks),
            }),
            false => Err(foreign_kv()),
        }
    }
}
