"""What every part of nvc uses, and that imports none of them: errors, frozen values, files, text."""
