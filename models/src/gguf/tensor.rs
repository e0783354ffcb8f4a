//! The tensor table of one file: what each tensor is, and where its bytes lie.
//!
//! Invariant: every [`TensorInfo`] that leaves this module lies whole within its file, aligned, and
//! overlaps no other.

use kernels::WeightType;

use super::cursor::Cursor;
use crate::error::quote;
use crate::limits::{TENSOR_DIMS_MAX, TENSOR_NAME_BYTES_MAX};
use crate::{Error, Result};

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub ty: WeightType,
    /// As in the file, the fastest first: a matrix of `rows` rows is `[cols, rows]`.
    pub dims: Vec<usize>,
    /// Which part of a split model holds it, from 0.
    pub part: usize,
    /// The first byte of its data in that part.
    pub start: usize,
    /// Bytes of its data.
    pub bytes: usize,
}

impl TensorInfo {
    /// The length of a row.
    pub fn cols(&self) -> usize {
        self.dims[0]
    }

    /// All rows, over the dimensions after the first.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product()
    }

    /// Values in the tensor.
    pub fn elements(&self) -> u64 {
        self.dims.iter().map(|&d| d as u64).product()
    }

    /// `[576, 192] Q4_1`, for an error.
    pub fn describe(&self) -> String {
        format!("{:?} {}", self.dims, self.ty.name())
    }
}

/// A row of the table as it stands in the file, its size computed and its place not yet checked.
#[derive(Debug)]
pub(super) struct TableRow {
    pub name: String,
    ty: WeightType,
    dims: Vec<usize>,
    offset: u64,
    bytes: u64,
}

/// The fewest bytes a row of the table can take: name length, one dimension, type, offset.
pub(super) const TABLE_ROW_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

impl TableRow {
    pub(super) fn read(cursor: &mut Cursor<'_>, index: usize) -> Result<Self> {
        let name = read_name(cursor).map_err(|e| e.within(&format!("tensor number {index}")))?;
        Self::read_named(cursor, &name).map_err(|e| e.within(&format!("tensor {}", quote(&name))))
    }

    fn read_named(cursor: &mut Cursor<'_>, name: &str) -> Result<Self> {
        let count = cursor.u32("the number of dimensions")?;
        if count == 0 || count > TENSOR_DIMS_MAX {
            return Err(Error::input(format!(
                "has {count} dimensions: need 1 to {TENSOR_DIMS_MAX}; the file is damaged"
            )));
        }
        let mut dims = Vec::new();
        let mut elements = 1_u64;
        for _ in 0..count {
            let dim = cursor.u64("a dimension")?;
            if dim == 0 {
                return Err(Error::input("a dimension is 0; convert the model again"));
            }
            elements = elements.checked_mul(dim).ok_or_else(overflow)?;
            dims.push(usize::try_from(dim).map_err(|_| overflow())?);
        }
        let ty = weight_type(cursor.u32("the type")?)?;
        let offset = cursor.u64("the offset")?;
        let row_bytes = ty.row_bytes(dims[0]).ok_or_else(|| {
            Error::input(format!(
                "a row of {} values is no whole number of {} blocks of {}; convert the model again",
                dims[0],
                ty.name(),
                ty.block_len()
            ))
        })?;
        let rows = elements / dims[0] as u64;
        let bytes = rows.checked_mul(row_bytes as u64).ok_or_else(overflow)?;
        Ok(Self {
            name: name.to_owned(),
            ty,
            dims,
            offset,
            bytes,
        })
    }
}

fn read_name(cursor: &mut Cursor<'_>) -> Result<String> {
    let length = cursor.u64("the name")?;
    if length == 0 || length > TENSOR_NAME_BYTES_MAX {
        return Err(Error::input(format!(
            "a name of {length} bytes: need 1 to {TENSOR_NAME_BYTES_MAX}; the file is damaged"
        )));
    }
    let bytes = cursor.take(length, "the name")?;
    match std::str::from_utf8(&bytes) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err(Error::input("the name is not UTF-8; the file is damaged")),
    }
}

fn overflow() -> Error {
    Error::input("the product of the dimensions does not fit in 64 bits; the file is damaged")
}

/// Where the data of one file lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataPlace {
    pub part: usize,
    /// The first byte of the data section.
    pub start: u64,
    pub alignment: u64,
    pub file_bytes: u64,
}

/// What [`place`] found: the tensors by name, and the end of the last one's data, padding included.
pub(super) struct Placed {
    pub tensors: Vec<(String, TensorInfo)>,
    pub end: u64,
}

/// Checks where each tensor lies: aligned, within the file, not over another.
pub(super) fn place(mut rows: Vec<TableRow>, place: DataPlace) -> Result<Placed> {
    rows.sort_by_key(|row| row.offset);
    check_size(&rows, place)?;
    let mut tensors: Vec<(String, TensorInfo)> = Vec::with_capacity(rows.len());
    let mut end = place.start;
    for row in rows {
        if row.offset % place.alignment != 0 {
            return Err(Error::input(format!(
                "tensor {}: offset {} is not a multiple of the alignment, {}; the file is damaged",
                quote(&row.name),
                row.offset,
                place.alignment
            )));
        }
        // Cannot overflow or pass the file's end: `check_size` looked at each.
        let start = place.start + row.offset;
        if let Some((name, _)) = tensors.last().filter(|_| start < end) {
            return Err(Error::input(format!(
                "tensor {} begins at byte {start}, before the end of tensor {} at byte {end}; the \
                 file is damaged",
                quote(&row.name),
                quote(name)
            )));
        }
        end = start + row.bytes;
        let info = TensorInfo {
            ty: row.ty,
            dims: row.dims,
            part: place.part,
            start: start as usize,
            bytes: row.bytes as usize,
        };
        tensors.push((row.name, info));
    }
    Ok(Placed {
        tensors,
        end: end.next_multiple_of(place.alignment),
    })
}

/// The whole file must be there: the usual reason it is not is a download that stopped half-way.
fn check_size(rows: &[TableRow], place: DataPlace) -> Result<()> {
    let end_of =
        |row: &TableRow| u128::from(place.start) + u128::from(row.offset) + u128::from(row.bytes);
    let file_bytes = u128::from(place.file_bytes);
    let Some(first) = rows.iter().find(|row| end_of(row) > file_bytes) else {
        return Ok(());
    };
    let need = rows.iter().map(end_of).max().unwrap_or(0);
    Err(Error::input(format!(
        "tensor {} ends at byte {}: need a file of {need} bytes, have {file_bytes}; it is cut short \
         or damaged, fetch it again",
        quote(&first.name),
        end_of(first)
    )))
}

/// The weight type behind a number of ggml's `enum ggml_type`.
fn weight_type(id: u32) -> Result<WeightType> {
    let found = SUPPORTED.iter().find(|(number, _)| *number == id);
    found.map(|&(_, ty)| ty).ok_or_else(|| {
        let name = UNSUPPORTED.iter().find(|(number, _)| *number == id);
        let what = match name {
            Some((_, name)) => format!("is of type {name} ({id}), which is not supported"),
            None => format!("is of type {id}, which is unknown; the file is damaged or too new"),
        };
        let known: Vec<_> = SUPPORTED.iter().map(|(_, ty)| ty.name()).collect();
        Error::input(format!(
            "{what}; take a model in one of {}",
            known.join(", ")
        ))
    })
}

/// The number of a weight type in a file.
pub(super) fn type_id(ty: WeightType) -> u32 {
    match ty {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Q4_0 => 2,
        WeightType::Q4_1 => 3,
        WeightType::Q5_0 => 6,
        WeightType::Q5_1 => 7,
        WeightType::Q8_0 => 8,
        WeightType::Q2K => 10,
        WeightType::Q3K => 11,
        WeightType::Q4K => 12,
        WeightType::Q5K => 13,
        WeightType::Q6K => 14,
        WeightType::BF16 => 30,
    }
}

const SUPPORTED: [(u32, WeightType); 13] = {
    use WeightType::*;
    [
        (0, F32),
        (1, F16),
        (30, BF16),
        (2, Q4_0),
        (3, Q4_1),
        (6, Q5_0),
        (7, Q5_1),
        (8, Q8_0),
        (10, Q2K),
        (11, Q3K),
        (12, Q4K),
        (13, Q5K),
        (14, Q6K),
    ]
};

/// Types that other programs read, for the error's sake.
const UNSUPPORTED: [(u32, &str); 22] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_numbers_read_back_as_they_are_written() {
        for (id, ty) in SUPPORTED {
            assert_eq!(type_id(ty), id);
            assert_eq!(weight_type(id).unwrap(), ty);
        }
        for (id, name) in UNSUPPORTED {
            assert!(weight_type(id).unwrap_err().to_string().contains(name));
        }
    }
}
