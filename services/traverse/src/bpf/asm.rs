// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Assembles text into bytecode. It accepts the output of [`super::disasm`] and of LLVM's disassembler, and labels.
//!
//! - **Layout** a line holds an instruction, a label (`name:`), or neither. `;`, `#` and `//` start a comment; a text in `<…>`
//!   behind a jump is a comment too. A jump names a label or, with a sign, the number of places to skip
//! - **Order** each text has exactly one encoding
//! - **Not here** macros, sections, symbols

use super::{Code, End, Instruction, Source, encode};
use crate::error::{Error, Result};
use crate::ir::{Alu, Cmp, Reg, Size, Width};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(&'static str),
}

const SIGNS: [&str; 24] = [
    "<<=", ">>=", "==", "!=", "<=", ">=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<", ">", "=", "+",
    "-", "*", "&", "(", ")", ":",
];

fn tokens(line: &str) -> Result<Vec<Token<'_>>, String> {
    let mut rest = line.trim_start();
    let mut tokens = Vec::new();
    while !rest.is_empty() {
        let word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
        let letters = rest.find(|letter| !word(letter)).unwrap_or(rest.len());
        let length = if letters > 0 {
            tokens.push(Token::Word(&rest[..letters]));
            letters
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            sign.len()
        } else {
            return Err(format!("`{rest}` is nothing that an instruction has"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Removes the comment of a line, and a symbol in angle brackets at its end.
fn bare(line: &str) -> &str {
    let end = [";", "#", "//"].iter().filter_map(|mark| line.find(mark)).min();
    let line = line[..end.unwrap_or(line.len())].trim();
    match line.rfind(" <") {
        Some(at) if line.ends_with('>') => line[..at].trim_end(),
        _ => line,
    }
}

/// Destination of a jump.
#[derive(Debug)]
enum Target<'a> {
    Label(&'a str),
    Over(i64),
}

struct Line<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

type Parsed<'a> = (Instruction, Option<Target<'a>>);

impl<'a> Line<'a> {
    fn peek(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Result<Token<'a>, String> {
        let token = self.peek(0).ok_or("the instruction ends too early")?;
        self.at += 1;
        Ok(token)
    }

    fn takes(&mut self, token: Token<'_>) -> bool {
        let there = self.peek(0) == Some(token);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), String> {
        match self.next()? {
            Token::Sign(found) if found == sign => Ok(()),
            Token::Sign(found) => Err(format!("`{found}` where `{sign}` was expected")),
            Token::Word(found) => Err(format!("`{found}` where `{sign}` was expected")),
        }
    }

    fn word(&mut self) -> Result<&'a str, String> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            Token::Sign(sign) => Err(format!("`{sign}` where a name or a number was expected")),
        }
    }

    fn is_register(word: &str) -> Option<(Width, Reg)> {
        let width = match word.as_bytes().first()? {
            b'r' => Width::W64,
            b'w' => Width::W32,
            _ => return None,
        };
        let number: u8 = word[1..].parse().ok()?;
        (number <= 10).then_some((width, Reg(number)))
    }

    fn register(&mut self) -> Result<(Width, Reg), String> {
        let word = self.word()?;
        Line::is_register(word)
            .ok_or_else(|| format!("`{word}` where a register, r0 to r10 or w0 to w10, was expected"))
    }

    fn wide(&mut self) -> Result<Reg, String> {
        match self.register()? {
            (Width::W64, reg) => Ok(reg),
            (Width::W32, Reg(number)) => Err(format!("w{number} where r{number} was expected")),
        }
    }

    fn number(&mut self) -> Result<i128, String> {
        let negative = self.takes(Token::Sign("-"));
        if !negative {
            self.takes(Token::Sign("+"));
        }
        let word = self.word()?;
        let value = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        let value = i128::from(value.map_err(|_| format!("`{word}` where a number was expected"))?);
        Ok(if negative { -value } else { value })
    }

    fn immediate(&mut self) -> Result<i32, String> {
        let value = self.number()?;
        i32::try_from(value)
            .map_err(|_| format!("{value} is no number of 32 bits, signed; load it with `ll`"))
    }

    /// Reads a register of this width, or a number.
    fn operand(&mut self, width: Width) -> Result<Source, String> {
        match self.peek(0) {
            Some(Token::Word(word)) if Line::is_register(word).is_some() => {
                let (found, reg) = self.register()?;
                if found == width { Ok(Source::Reg(reg)) } else { Err("32 and 64 bits are mixed".into()) }
            }
            _ => Ok(Source::Imm(self.immediate()?)),
        }
    }

    /// Reads the rest of `*(u64 *)(r1 + 8)`, after its first `*`.
    fn memory(&mut self) -> Result<(Size, bool, Reg, i16), String> {
        self.expect("(")?;
        let word = self.word()?;
        let (size, signed) = match word {
            "u8" => (Size::B1, false),
            "u16" => (Size::B2, false),
            "u32" => (Size::B4, false),
            "u64" => (Size::B8, false),
            "s8" => (Size::B1, true),
            "s16" => (Size::B2, true),
            "s32" => (Size::B4, true),
            _ => return Err(format!("`{word}` where u8, u16, u32, u64, s8, s16 or s32 was expected")),
        };
        self.expect("*")?;
        self.expect(")")?;
        self.expect("(")?;
        let base = self.wide()?;
        let offset = if self.peek(0) == Some(Token::Sign(")")) { 0 } else { self.number()? };
        self.expect(")")?;
        let offset = i16::try_from(offset).map_err(|_| format!("offset {offset} is not one of 16 bits"))?;
        Ok((size, signed, base, offset))
    }

    fn target(&mut self) -> Result<Target<'a>, String> {
        match self.peek(0) {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(Target::Label(word))
            }
            _ => Ok(Target::Over(i64::try_from(self.number()?).unwrap_or(i64::MAX))),
        }
    }

    /// Reads the rest of `r1 = …`, after the `=`.
    fn assignment(&mut self, width: Width, target: Reg) -> Result<Instruction, String> {
        if self.takes(Token::Sign("*")) {
            let (size, signed, base, offset) = self.memory()?;
            if width == Width::W32 && (signed || size == Size::B8) {
                return Err("this load sets all 64 bits; its target is an r".into());
            }
            return Ok(Instruction::Load { size, signed, target, base, offset });
        }
        if let (Some(Token::Sign("-")), Some(Token::Word(word))) = (self.peek(0), self.peek(1))
            && let Some(register) = Line::is_register(word)
        {
            self.at += 2;
            if register != (width, target) {
                return Err("negation is of one register: `r1 = -r1`".into());
            }
            return Ok(Instruction::Negate { width, target });
        }
        if self.takes(Token::Sign("(")) {
            let word = self.word()?;
            let bits = word.strip_prefix('s').and_then(|bits| bits.parse().ok());
            let bits = bits.ok_or_else(|| format!("`{word}` where s8, s16 or s32 was expected"))?;
            self.expect(")")?;
            return match (self.operand(width)?, bits, width) {
                (Source::Reg(source), 8 | 16, _) | (Source::Reg(source), 32, Width::W64) => {
                    Ok(Instruction::MoveSigned { width, target, source, bits })
                }
                _ => Err("sign extension is from 8, 16 or, to 64 bits, 32 bits of a register".into()),
            };
        }
        if let Some(Token::Word(word)) = self.peek(0) {
            let ends = [("le", End::Little), ("be", End::Big), ("bswap", End::Swap)];
            for (name, end) in ends {
                let bits = word.strip_prefix(name).and_then(|bits| bits.parse().ok());
                if let Some(bits @ (16 | 32 | 64)) = bits {
                    self.at += 1;
                    if self.register()? != (width, target) || width == Width::W32 {
                        return Err(format!("the order of bytes is of one register: `r1 = {word} r1`"));
                    }
                    return Ok(Instruction::Bytes { end, target, bits });
                }
            }
            if Line::is_register(word).is_some() {
                let source = self.operand(width)?;
                return Ok(Instruction::Move { width, target, source });
            }
        }
        let value = self.number()?;
        if self.takes(Token::Word("ll")) {
            let low = i64::try_from(value).map(|value| value as u64).or_else(|_| u64::try_from(value));
            let value = low.map_err(|_| format!("{value} is no number of 64 bits"))?;
            return match width {
                Width::W64 => Ok(Instruction::LoadImmediate { target, value }),
                Width::W32 => Err("64 bits go to an r".into()),
            };
        }
        let value = i32::try_from(value)
            .map_err(|_| format!("{value} is no number of 32 bits, signed; append `ll`"))?;
        Ok(Instruction::Move { width, target, source: Source::Imm(value) })
    }

    fn instruction(&mut self) -> Result<Parsed<'a>, String> {
        match self.peek(0) {
            Some(Token::Sign("*")) => {
                self.at += 1;
                let (size, signed, base, offset) = self.memory()?;
                if signed {
                    return Err("stores have no sign: u8, u16, u32 or u64".into());
                }
                self.expect("=")?;
                if let Some(Token::Word(word)) = self.peek(0)
                    && let Some((_, reg)) = Line::is_register(word)
                {
                    self.at += 1;
                    return Ok((Instruction::Store { size, base, offset, source: Source::Reg(reg) }, None));
                }
                let source = Source::Imm(self.immediate()?);
                Ok((Instruction::Store { size, base, offset, source }, None))
            }
            Some(Token::Word("exit")) => {
                self.at += 1;
                Ok((Instruction::Exit, None))
            }
            Some(Token::Word(word @ ("goto" | "gotol"))) => {
                self.at += 1;
                let target = self.target()?;
                Ok((Instruction::Jump { offset: 0, long: word == "gotol" }, Some(target)))
            }
            Some(Token::Word("if")) => {
                self.at += 1;
                let (width, left) = self.register()?;
                let cmp = self.comparison()?;
                let right = self.operand(width)?;
                if !self.takes(Token::Word("goto")) {
                    return Err("`goto` is missing".into());
                }
                let target = self.target()?;
                Ok((Instruction::Branch { cmp, width, left, right, offset: 0 }, Some(target)))
            }
            _ => {
                let (width, target) = self.register()?;
                if self.takes(Token::Sign("=")) {
                    return Ok((self.assignment(width, target)?, None));
                }
                let op = self.arithmetic()?;
                let source = self.operand(width)?;
                Ok((Instruction::Alu { op, width, target, source }, None))
            }
        }
    }

    fn comparison(&mut self) -> Result<Cmp, String> {
        let signed = self.takes(Token::Word("s"));
        Ok(match (self.next()?, signed) {
            (Token::Sign("=="), false) => Cmp::Eq,
            (Token::Sign("!="), false) => Cmp::Ne,
            (Token::Sign(">"), false) => Cmp::Gt,
            (Token::Sign(">="), false) => Cmp::Ge,
            (Token::Sign("<"), false) => Cmp::Lt,
            (Token::Sign("<="), false) => Cmp::Le,
            (Token::Sign(">"), true) => Cmp::SGt,
            (Token::Sign(">="), true) => Cmp::SGe,
            (Token::Sign("<"), true) => Cmp::SLt,
            (Token::Sign("<="), true) => Cmp::SLe,
            (Token::Sign("&"), false) => Cmp::Set,
            _ => return Err("a comparison was expected: == != > >= < <= s> s>= s< s<= &".into()),
        })
    }

    fn arithmetic(&mut self) -> Result<Alu, String> {
        let signed = self.takes(Token::Word("s"));
        Ok(match (self.next()?, signed) {
            (Token::Sign("+="), false) => Alu::Add,
            (Token::Sign("-="), false) => Alu::Sub,
            (Token::Sign("*="), false) => Alu::Mul,
            (Token::Sign("/="), false) => Alu::Div,
            (Token::Sign("/="), true) => Alu::SDiv,
            (Token::Sign("%="), false) => Alu::Rem,
            (Token::Sign("%="), true) => Alu::SRem,
            (Token::Sign("&="), false) => Alu::And,
            (Token::Sign("|="), false) => Alu::Or,
            (Token::Sign("^="), false) => Alu::Xor,
            (Token::Sign("<<="), false) => Alu::Shl,
            (Token::Sign(">>="), false) => Alu::Shr,
            (Token::Sign(">>="), true) => Alu::Sar,
            _ => return Err("arithmetic was expected: = += -= *= /= s/= %= s%= &= |= ^= <<= >>= s>>=".into()),
        })
    }
}

/// Parses a text into instructions.
///
/// # Errors
/// [`Error::Text`] with the line that cannot be read.
pub fn parse(text: &str) -> Result<Vec<Instruction>> {
    let mut labels = HashMap::new();
    let mut jumps = Vec::new();
    let mut instructions = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |reason: String| Error::Text { line: number + 1, reason };
        let mut line = Line { tokens: tokens(bare(line)).map_err(wrong)?, at: 0 };
        if line.tokens.is_empty() {
            continue;
        }
        if let [Token::Word(name), Token::Sign(":")] = line.tokens[..] {
            if labels.insert(name, instructions.len()).is_some() {
                return Err(wrong(format!("label {name} is there twice")));
            }
            continue;
        }
        let (instruction, target) = line.instruction().map_err(wrong)?;
        if let Some(rest) = line.peek(0) {
            return Err(wrong(format!("{rest:?} is left over")));
        }
        if let Some(target) = target {
            jumps.push((instructions.len(), target, number + 1));
        }
        instructions.push(instruction);
    }
    let mut places = Code::new(instructions.clone()).places;
    places.push(instructions.iter().map(Instruction::places).sum());
    for (from, target, line) in jumps {
        let over = match target {
            Target::Over(over) => over,
            Target::Label(name) => {
                let to = labels.get(name);
                let to =
                    *to.ok_or_else(|| Error::Text { line, reason: format!("there is no label {name}") })?;
                i64::from(places[to]) - i64::from(places[from]) - 1
            }
        };
        let far = |_| Error::Text { line, reason: format!("a jump over {over} places is too far") };
        match &mut instructions[from] {
            Instruction::Jump { offset, long: true } => *offset = i32::try_from(over).map_err(far)?,
            Instruction::Jump { offset, long: false } => *offset = i16::try_from(over).map_err(far)?.into(),
            Instruction::Branch { offset, .. } => *offset = i16::try_from(over).map_err(far)?,
            _ => {}
        }
    }
    Ok(instructions)
}

/// Assembles a text into bytecode.
///
/// # Errors
/// The errors of [`parse`].
pub fn assemble(text: &str) -> Result<Vec<u8>> {
    Ok(encode::encode(&parse(text)?))
}
