//! Texts of one column under construction: each row's place in a list of texts, and a text that is that of the row before is there
//! once. In the order of our tables nearly every one is.

use arrow::array::{ArrayBuilder as _, AsArray as _, DictionaryArray, Int32Array, Int32Builder, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, Int32Type};
use std::sync::Arc;

pub(super) struct Texts {
    /// One after the other.
    bytes: Vec<u8>,
    /// Where each begins, and where the last one ends.
    offsets: Vec<i32>,
    places: Int32Builder,
}

impl Default for Texts {
    fn default() -> Self {
        Self { bytes: Vec::new(), offsets: vec![0], places: Int32Builder::with_capacity(0) }
    }
}

impl Texts {
    /// Type of [`Texts::take_runs`].
    pub fn runs_type() -> DataType {
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
    }

    /// Whether no row has a text.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Rows up to the last one that has a text.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Sets the text of row number `row`, which is UTF-8; rows before it without a text have none.
    #[inline]
    pub fn append(&mut self, row: usize, text: &[u8]) {
        let missing = row - self.places.len();
        if missing > 0 {
            self.places.append_nulls(missing);
        }
        let place = match self.offsets[..] {
            [.., from, to] if self.bytes[from as usize..to as usize] == *text => self.offsets.len() - 2,
            _ => {
                self.bytes.extend_from_slice(text);
                self.offsets.push(i32::try_from(self.bytes.len()).expect("files are cut long before 2 GiB of one column"));
                self.offsets.len() - 2
            }
        };
        self.places.append_value(place as i32);
    }

    /// Gives the text of the last of `rows` rows to `times` more, if that has one.
    pub fn repeat(&mut self, rows: usize, times: usize) {
        if self.places.len() == rows
            && let Some(&last) = self.places.values_slice().last()
        {
            self.places.append_value_n(last, times);
        }
    }

    /// The texts of `len` rows; none are left.
    pub fn take(&mut self, len: usize) -> StringArray {
        let (places, texts) = self.parts(len);
        take(&texts, &places, None).expect("places are in the list").as_string().clone()
    }

    /// The same as places in a list of them, which has as many as there are runs of rows with one text.
    pub fn take_runs(&mut self, len: usize) -> DictionaryArray<Int32Type> {
        let (places, texts) = self.parts(len);
        DictionaryArray::try_new(places, Arc::new(texts)).expect("places are in the list")
    }

    fn parts(&mut self, len: usize) -> (Int32Array, StringArray) {
        let missing = len - self.places.len();
        if missing > 0 {
            self.places.append_nulls(missing);
        }
        let places = self.places.finish();
        self.places = Int32Builder::with_capacity(places.len());
        // The next texts find room for as many.
        let next = (Vec::with_capacity(self.bytes.len()), Vec::with_capacity(self.offsets.len()));
        let bytes = std::mem::replace(&mut self.bytes, next.0);
        let offsets = std::mem::replace(&mut self.offsets, next.1);
        self.offsets.push(0);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let texts = StringArray::try_new(offsets, Buffer::from_vec(bytes), None).expect("only texts are added");
        (places, texts)
    }
}
