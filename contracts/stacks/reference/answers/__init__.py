"""What the reference answers, a file a protocol of `contracts/spec/`: values in, values out."""
