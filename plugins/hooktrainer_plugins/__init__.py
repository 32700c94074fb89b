"""The plugins that come with hooktrainer, one a file; they register like anyone's, by entry point."""
