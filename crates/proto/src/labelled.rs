//! Enums whose values are words of metrics and logs, declared once: variant, word, meaning.

/// Declares an enum with `ALL`, of which `ALL[value as usize] == value`, and `label`.
#[macro_export]
macro_rules! labelled {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $label:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every value, in the order of declaration: `ALL[value as usize] == value`.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$variant,)*];

            /// The word in metrics, pages and logs.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}
