//! What a person wants to know about a model file at a glance.

use std::collections::BTreeMap;

use super::Gguf;
use crate::Result;

/// The weights of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeShare {
    pub ty: &'static str,
    pub tensors: usize,
    pub parameters: u64,
    pub bytes: u64,
}

/// A model file in a few lines. Made from any readable file, also of a family that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// `general.name`, else the name of the file.
    pub name: String,
    /// `general.architecture`, where the file says.
    pub architecture: Option<String>,
    pub parameters: u64,
    /// As its makers call it, `Q4_K_M`; else the types that hold most, `Q8_0`.
    pub quantisation: String,
    /// By bytes, the largest share first.
    pub types: Vec<TypeShare>,
    /// Positions the model was trained on, where the file says.
    pub context_train: Option<u64>,
    /// Tokens in the vocabulary, where the file has one.
    pub vocab: Option<usize>,
    pub file_bytes: u64,
    pub parts: usize,
}

impl Gguf {
    /// The model at a glance.
    ///
    /// # Errors
    /// A key that is there with the wrong type.
    pub fn summary(&self) -> Result<Summary> {
        let metadata = self.metadata();
        let architecture = metadata.optional::<&str>("general.architecture")?;
        let context_train = match architecture {
            Some(arch) => metadata.optional::<u64>(&format!("{arch}.context_length"))?,
            None => None,
        };
        let tokens = metadata.optional::<Vec<&str>>("tokenizer.ggml.tokens")?;
        let types = self.type_shares();
        Ok(Summary {
            name: self.name()?,
            architecture: architecture.map(str::to_owned),
            parameters: types.iter().map(|share| share.parameters).sum(),
            quantisation: self.quantisation()?,
            types,
            context_train,
            vocab: tokens.map(|tokens| tokens.len()),
            file_bytes: self.file_bytes(),
            parts: self.parts.len(),
        })
    }

    /// `general.name`, else the name of the file.
    pub fn name(&self) -> Result<String> {
        let given = self
            .metadata()
            .optional::<&str>("general.name")?
            .unwrap_or_default()
            .trim();
        if !given.is_empty() {
            return Ok(given.to_owned());
        }
        Ok(self
            .path()
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned())
    }

    /// `Q4_K_M` where `general.file_type` says so, else the type that holds most bytes.
    pub fn quantisation(&self) -> Result<String> {
        let declared = self.metadata().optional::<u64>("general.file_type")?;
        let named = declared.and_then(|id| FILE_TYPES.iter().find(|(number, _)| *number == id));
        if let Some((_, name)) = named {
            return Ok((*name).to_owned());
        }
        let largest = self.type_shares().first().map(|share| share.ty);
        Ok(largest.unwrap_or("no weights").to_owned())
    }

    fn type_shares(&self) -> Vec<TypeShare> {
        let mut shares: BTreeMap<&'static str, TypeShare> = BTreeMap::new();
        for (_, info) in self.tensors() {
            let ty = info.ty.name();
            let share = shares.entry(ty).or_insert(TypeShare {
                ty,
                tensors: 0,
                parameters: 0,
                bytes: 0,
            });
            share.tensors += 1;
            share.parameters += info.elements();
            share.bytes += info.bytes as u64;
        }
        let mut shares: Vec<_> = shares.into_values().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }
}

/// `enum llama_ftype` of llama.cpp.
const FILE_TYPES: [(u64, &str); 19] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (21, "Q2_K_S"),
    (32, "BF16"),
    (1024, "mixed"),
];
