"""A badge as SVG, for a page that no server draws for."""

COLOURS = {"brightgreen": "#3a7d0a", "yellow": "#8a6d00", "red": "#b3261e"}  # white on them is legible


def svg(label: str, message: str, color: str) -> str:
    """By the names that shields.io has for the parts of its endpoint badge."""
    split, width = 7 * len(label) + 12, 7 * (len(label) + len(message)) + 24  # a letter of 11 pixels is about 7 wide
    parts = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{label}: {message}">',
        f'<rect width="{width}" height="20" rx="3" fill="{COLOURS[color]}"/>',
        f'<rect width="{split}" height="20" rx="3" fill="#444"/>',
        '<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">',
        f'<text x="{split / 2}" y="14">{label}</text>',
        f'<text x="{(split + width) / 2}" y="14">{message}</text></g></svg>',
    )
    return "\n".join(parts) + "\n"
