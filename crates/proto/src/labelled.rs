//! A macro for enums whose variants have a label for metrics and logs.

/// Declares an enum with `label` and `ALL`, where `ALL[value as usize] == value`.
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

            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}
