// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reasons of all decisions: one type per kind of decision, one code and one text per reason.
//!
//! - **Flow** a caller stores [`Reason`] in its decision ──▶ the stats page has the code ──▶ `memlift explain` and `memlift top` print
//!   [`reason_text`]; a caller that explains its own decisions prints `text`
//! - **Layout** codes 1–15 copies, 16–31 messages of transform, 32–47 calls, 48–63 walks (`docs/formats/stats.md`). A code keeps its
//!   meaning
//! - **Not here** decisions

/// Code of a reason, as in the stats page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason(u16);

impl Reason {
    /// Returns the code.
    pub const fn code(self) -> u16 {
        self.0
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal, {
        $($variant:ident = $code:literal, $text:literal;)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            #[repr(u16)]
            pub enum $name {
                $(#[doc = $text] $variant = $code,)*
            }

            impl $name {
                /// Returns the reason in words.
                pub const fn text(self) -> &'static str {
                    match self { $($name::$variant => $text,)* }
                }
            }

            impl From<$name> for Reason {
                fn from(reason: $name) -> Reason {
                    Reason(reason as u16)
                }
            }

            impl PartialEq<$name> for Reason {
                fn eq(&self, other: &$name) -> bool {
                    self.0 == *other as u16
                }
            }
        )*

        /// Returns the text of a reason code from the stats page.
        pub const fn reason_text(code: u16) -> &'static str {
            match code {
                $($($code => concat!($prefix, $text),)*)*
                _ => "unknown reason",
            }
        }
    };
}

reasons! {
    /// Reason that an executor was chosen for an operation.
    CopyReason, "", {
        Fastest = 1, "lowest predicted time";
        Incumbent = 2, "in use already, and nothing is predicted to be 6 % faster";
        Explored = 3, "second best, tried to keep its prediction true";
        Only = 4, "the only executor that is calibrated for it";
        Requested = 5, "the caller said so";
    }

    /// Reason that a store was chosen for a message.
    StoreReason, "transform: ", {
        Cached = 16, "source or target is in cache, so the result stays there, too";
        StreamingFaster = 17, "neither is in cache, and streaming was measured to be faster";
        TemporalFaster = 18, "neither is in cache, and ordinary stores were measured to be faster";
        Contended = 19, "the cache is contended, so neighbours are spared";
        Held = 20, "as before, until the least stay is over or another way is clearly better";
        Tried = 21, "tried to keep its measurement true";
        Told = 22, "the caller said so";
        Small = 23, "too small to be looked at";
    }

    /// Reason for the device and the cache policy of a call's copies.
    CallReason, "call: ", {
        Requested = 32, "the caller said so";
        Small = 33, "below the gate a request is copied here and now, and nothing is decided";
        First = 34, "no such call was made yet, and calls of its mode begin with it";
        Begun = 35, "begun with, and nothing was measured to be 6 % cheaper since";
        Cheapest = 36, "measured to be the cheapest, copy and handler together";
        Explored = 37, "tried to measure its cost, copy and handler together";
        Reply = 38, "the client said so for the reply";
    }

    /// Reason for the place where a walk runs.
    WalkReason, "walk: ", {
        Requested = 48, "the caller said so";
        Fastest = 49, "measured to take the shortest time";
        Explored = 50, "tried to measure its time";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::Rules;

    #[test]
    fn codes_of_the_page_have_texts_and_the_texts_have_the_rules_numbers() {
        assert_eq!(reason_text(CopyReason::Requested as u16), "the caller said so");
        assert_eq!(reason_text(22), "transform: the caller said so");
        assert_eq!(Reason::from(CallReason::Explored).code(), 37);
        assert_eq!(reason_text(37), format!("call: {}", CallReason::Explored.text()));
        assert_eq!(reason_text(9), "unknown reason");
        for (rules, text) in
            [(Rules::COPIES, CopyReason::Incumbent.text()), (Rules::CALLS, CallReason::Begun.text())]
        {
            let percent = (1.0 - rules.switch_below) * 100.0;
            assert!(text.contains(&format!(" {percent:.0} %")), "{text}");
        }
    }
}
