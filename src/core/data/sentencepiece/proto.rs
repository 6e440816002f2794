//! The fields of `sentencepiece_model.proto` that are of use, read from their bytes.

/// A model file.
#[derive(Debug, PartialEq)]
pub(super) struct Model {
    pub pieces: Vec<SentencePiece>,
    pub is_bpe: bool,
    /// A model of another kind: words or letters.
    pub other_kind: Option<u64>,
    pub byte_fallback: bool,
    pub whitespace_is_suffix: bool,
    pub unk: u64,
    pub bos: Option<u64>,
    pub eos: Option<u64>,
    pub charsmap: Vec<u8>,
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

/// A piece of a text, and its id: its place among all pieces.
#[derive(Debug, PartialEq)]
pub struct SentencePiece {
    pub text: String,
    pub score: f32,
    pub kind: PieceKind,
}

/// The kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// A field's value.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Float(f32),
}

/// Reads fields one after another; `None` in the place of a field that is damaged.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Field::Number(self.number()?),
            1 => {
                self.take(8)?;
                Field::Number(0)
            }
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Float(f32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

impl Model {
    /// `None`: no such file.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut model = Self {
            pieces: Vec::new(),
            is_bpe: false,
            other_kind: None,
            byte_fallback: false,
            whitespace_is_suffix: false,
            unk: 0,
            bos: Some(1),
            eos: Some(2),
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(piece)) => model.pieces.push(SentencePiece::parse(piece)?),
                (2, Field::Bytes(trainer)) => model.read_trainer(trainer)?,
                (3, Field::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
                _ => {}
            }
        }
        (!model.pieces.is_empty()).then_some(model)
    }

    fn read_trainer(&mut self, bytes: &[u8]) -> Option<()> {
        // -1 is none.
        let id = |number: u64| u32::try_from(number).is_ok().then_some(number);
        for field in Fields(bytes) {
            match field? {
                (3, Field::Number(kind)) => {
                    self.is_bpe = kind == 2;
                    self.other_kind = Some(kind).filter(|kind| !(1..=2).contains(kind));
                }
                (24, Field::Number(flag)) => self.whitespace_is_suffix = flag != 0,
                (35, Field::Number(flag)) => self.byte_fallback = flag != 0,
                (40, Field::Number(unk)) => self.unk = unk,
                (41, Field::Number(bos)) => self.bos = id(bos),
                (42, Field::Number(eos)) => self.eos = id(eos),
                _ => {}
            }
        }
        Some(())
    }

    fn read_normalizer(&mut self, bytes: &[u8]) -> Option<()> {
        for field in Fields(bytes) {
            match field? {
                (2, Field::Bytes(charsmap)) => self.charsmap = charsmap.to_vec(),
                (3, Field::Number(flag)) => self.add_dummy_prefix = flag != 0,
                (4, Field::Number(flag)) => self.remove_extra_whitespaces = flag != 0,
                (5, Field::Number(flag)) => self.escape_whitespaces = flag != 0,
                _ => {}
            }
        }
        Some(())
    }
}

impl SentencePiece {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: PieceKind::Normal };
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(text)) => piece.text = String::from_utf8(text.to_vec()).ok()?,
                (2, Field::Float(score)) => piece.score = score,
                (3, Field::Number(kind)) => {
                    piece.kind = match kind {
                        1 => PieceKind::Normal,
                        2 => PieceKind::Unknown,
                        3 => PieceKind::Control,
                        4 => PieceKind::UserDefined,
                        5 => PieceKind::Unused,
                        6 => PieceKind::Byte,
                        _ => return None,
                    }
                }
                _ => {}
            }
        }
        Some(piece)
    }
}
